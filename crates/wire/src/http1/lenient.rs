//! Rewrites headers that RFC 9112 does not allow, but that servers accept, into headers with the same meaning that it
//! allows: folded lines, control characters, unknown bytes in names, repeated spaces.
//!
//! Headers whose meaning differs between servers are rejected, in particular a hidden length field. Request smuggling
//! depends on such fields.

use std::str;

/// The fields that determine where a message ends.
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];

/// True for the fields that determine where a message ends or how the connection continues.
pub(super) fn frames(name: &str) -> bool {
    FRAMING.iter().chain(&["upgrade"]).any(|known| name.eq_ignore_ascii_case(known))
}

/// True for a byte of a method or of a field's name (RFC 9110, section 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The name of the field in this line; `None` if the line has no colon.
pub(super) fn name(line: &[u8]) -> Option<&str> {
    let end = line.iter().position(|byte| *byte == b':')?;
    str::from_utf8(line.get(..end)?).ok()
}

/// True if the line continues the previous one (RFC 9112, section 5.2).
pub(super) fn continues(line: &[u8]) -> bool {
    matches!(line.first(), Some(b' ' | b'\t'))
}

/// The same request headers as RFC 9112 allows them, with the fields that `keeps` accepts; `None` if they have no such
/// form, or more than one.
pub(super) fn request(head: &[u8], keeps: &dyn Fn(&str) -> bool) -> Option<Vec<u8>> {
    rewrite(head, keeps, |line, clean| {
        let mut parts = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|part| !part.is_empty());
        let (Some(method), Some(target), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        clean.extend_from_slice(method);
        clean.push(b' ');
        for byte in target {
            if byte.is_ascii_graphic() {
                clean.push(*byte);
            } else {
                clean.extend_from_slice(format!("%{byte:02X}").as_bytes());
            }
        }
        clean.push(b' ');
        clean.extend_from_slice(version);
        Some(())
    })
}

/// The same response headers as RFC 9112 allows them; `None` as for a request.
pub(super) fn response(head: &[u8]) -> Option<Vec<u8>> {
    rewrite(head, &|_| true, |line, clean| {
        let mut parts = line.split(|byte| *byte == b' ').filter(|part| !part.is_empty());
        let (Some(version), Some(status)) = (parts.next(), parts.next()) else { return None };
        clean.extend_from_slice(version);
        clean.push(b' ');
        clean.extend_from_slice(status);
        Some(())
    })
}

fn rewrite(
    head: &[u8],
    keeps: &dyn Fn(&str) -> bool,
    start: impl FnOnce(&[u8], &mut Vec<u8>) -> Option<()>,
) -> Option<Vec<u8>> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut clean = Vec::with_capacity(head.len() + 16);
    start(lines.next().unwrap_or_default(), &mut clean)?;
    // The lines in front of the first field have no field to continue.
    let mut keeping = false;
    for line in lines.take_while(|line| !line.is_empty()) {
        let name = name(line).filter(|name| !name.is_empty() && name.bytes().all(is_token));
        let value = name.and_then(|name| line.get(name.len()..));
        if line.split(|byte| *byte == b'\r').skip(usize::from(name.is_some())).any(hides_framing) {
            return None;
        }
        match (name, value) {
            (Some(name), Some(value)) => {
                keeping = frames(name) || keeps(name);
                if keeping {
                    clean.extend_from_slice(b"\r\n");
                    clean.extend_from_slice(name.as_bytes());
                    push_value(value, &mut clean);
                }
            }
            _ if continues(line) && keeping => push_value(line, &mut clean),
            _ if continues(line) => {}
            _ => keeping = false,
        }
    }
    clean.extend_from_slice(b"\r\n\r\n");
    Some(clean)
}

/// Appends a value with spaces in place of control characters (RFC 9110, section 5.5).
fn push_value(value: &[u8], clean: &mut Vec<u8>) {
    clean.extend(value.iter().map(|byte| if byte.is_ascii_control() && *byte != b'\t' { b' ' } else { *byte }));
}

/// True if a server might read these bytes as a length field, although they do not form one.
pub(super) fn hides_framing(line: &[u8]) -> bool {
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    let is_letter = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'-';
    FRAMING.iter().any(|known| {
        let letters = name.iter().filter(is_letter).map(u8::to_ascii_lowercase);
        letters.take(known.len()).eq(known.bytes())
    })
}
