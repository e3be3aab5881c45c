//! Decides by recursion whether the scanner accepts a whole text: JSON, and the deviations that the scanner documents.

use super::tree::{DEPTH, LONGEST, Node};
use tokometer_decode::scan::{Place, Shape};

/// True if the scanner must accept this text to its end.
pub fn accepts(text: &[u8]) -> bool {
    let mut rest = text;
    value(&mut rest, Some(Node::Tree), 0).is_some() && space(rest).is_empty()
}

fn space(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !b" \n\r\t".contains(byte)).unwrap_or(text.len());
    &text[end..]
}

/// Consumes white space and this byte.
fn expect(rest: &mut &[u8], byte: u8) -> Option<()> {
    *rest = space(rest).strip_prefix(&[byte])?;
    Some(())
}

/// Consumes the rest of a string after its opening quote; returns it with its escapes.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let all = *rest;
    let mut at = 0;
    loop {
        match all.get(at)? {
            b'\\' => at += 2,
            b'"' => {
                *rest = &all[at + 1..];
                return Some(&all[..at]);
            }
            _ => at += 1,
        }
    }
}

fn value(rest: &mut &[u8], place: Option<Node>, depth: usize) -> Option<()> {
    *rest = space(rest);
    let shape = place.filter(|_| depth < DEPTH).map(|place| place.shape());
    match (rest.first()?, shape) {
        (b'"', _) => {
            *rest = &rest[1..];
            string(rest).map(|_| ())
        }
        (b'{', Some(Shape::Object(_) | Shape::OneOrMany(..))) => members(rest, depth + 1),
        (b'[', Some(Shape::Array(element) | Shape::OneOrMany(_, element))) => elements(rest, element, depth + 1),
        (b'{' | b'[', _) => nested(rest),
        (b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I', _) => scalar(rest),
        _ => None,
    }
}

fn members(rest: &mut &[u8], depth: usize) -> Option<()> {
    expect(rest, b'{')?;
    if expect(rest, b'}').is_some() {
        return Some(());
    }
    loop {
        expect(rest, b'"')?;
        let key = string(rest)?;
        expect(rest, b':')?;
        value(rest, place(key), depth)?;
        if expect(rest, b'}').is_some() {
            return Some(());
        }
        expect(rest, b',')?;
    }
}

/// The place for a key, given with its escapes. A key with an invalid escape has none.
fn place(key: &[u8]) -> Option<Node> {
    if !key.contains(&b'\\') {
        return Node::of_key(key);
    }
    let quoted = [b"\"", key, b"\""].concat();
    serde_json::from_slice::<String>(&quoted).ok().and_then(|key| Node::of_key(key.as_bytes()))
}

fn elements(rest: &mut &[u8], element: Node, depth: usize) -> Option<()> {
    expect(rest, b'[')?;
    if expect(rest, b']').is_some() {
        return Some(());
    }
    loop {
        value(rest, Some(element), depth)?;
        if expect(rest, b']').is_some() {
            return Some(());
        }
        expect(rest, b',')?;
    }
}

/// A skipped container: strings are parsed, brackets are counted regardless of their kind.
fn nested(rest: &mut &[u8]) -> Option<()> {
    let mut open = 0;
    loop {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        match byte {
            b'"' => {
                string(rest)?;
            }
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(());
        }
    }
}

/// A literal, or any bytes that occur in numbers. Anything longer than the longest number is not checked.
fn scalar(rest: &mut &[u8]) -> Option<()> {
    let end = rest.iter().position(|byte| b",}] \n\r\t".contains(byte)).unwrap_or(rest.len());
    let (written, after) = rest.split_at(end);
    *rest = after;
    let fine = written.len() > LONGEST
        || [&b"true"[..], b"false", b"null", b"NaN", b"Infinity", b"-Infinity"].contains(&written)
        || written.iter().all(|byte| b"0123456789+-.eE".contains(byte));
    fine.then_some(())
}
