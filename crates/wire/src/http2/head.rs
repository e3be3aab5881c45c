//! Extracts request and response headers from decoded fields (RFC 9113, section 8.3).

use std::str;

use httparse::{EMPTY_HEADER, Header};

use crate::http2::hpack::Fields;
use crate::message::RequestHead;

/// Maximum number of fields listed on the stack; real messages have fewer.
const USUAL_FIELDS: usize = 32;

/// Passes the headers of a request to `seen`, unless the method is missing.
pub(super) fn request(fields: &Fields, seen: impl FnOnce(&RequestHead<'_>)) {
    listed(fields, |headers| {
        let text = |name| value(headers, name).and_then(|value| str::from_utf8(value).ok());
        if let Some(method) = text(":method") {
            let target = text(":path").or_else(|| text(":authority")).unwrap_or_default();
            seen(&RequestHead { method, target, minor: 0, headers });
        }
    });
}

/// The status in these fields.
pub(super) fn status(fields: &Fields) -> Option<u16> {
    let status: [u8; 3] = fields.iter().find(|field| field.name == ":status")?.value.try_into().ok()?;
    let status: u16 = str::from_utf8(&status).ok()?.parse().ok()?;
    (100..1000).contains(&status).then_some(status)
}

fn value<'a>(headers: &[Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name == name).map(|header| header.value)
}

/// Collects the fields in a slice and passes it to `seen`.
pub(super) fn listed(fields: &Fields, seen: impl FnOnce(&[Header<'_>])) {
    let mut usual = [EMPTY_HEADER; USUAL_FIELDS];
    match usual.get_mut(..fields.len()) {
        Some(list) => {
            list.iter_mut().zip(fields.iter()).for_each(|(place, field)| *place = field);
            seen(list);
        }
        None => seen(&fields.iter().collect::<Vec<_>>()),
    }
}
