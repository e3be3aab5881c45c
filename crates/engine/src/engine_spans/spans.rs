//! Parser for the spans of an OTLP export request, as far as queue times need them
//! (opentelemetry-proto 1.x: collector/trace/v1/trace_service.proto, trace/v1/trace.proto, common/v1/common.proto).

use crate::engine_spans::protobuf::Fields;
use crate::engine_spans::protobuf::Malformed;
use crate::engine_spans::protobuf::Value;

/// Field numbers of the messages.
mod number {
    pub(super) const RESOURCE_SPANS: u32 = 1;
    pub(super) const SCOPE_SPANS: u32 = 2;
    pub(super) const SPANS: u32 = 2;
    pub(super) const TRACE_ID: u32 = 1;
    pub(super) const SPAN_ID: u32 = 2;
    pub(super) const PARENT_SPAN_ID: u32 = 4;
    pub(super) const NAME: u32 = 5;
    pub(super) const START: u32 = 7;
    pub(super) const END: u32 = 8;
    pub(super) const ATTRIBUTES: u32 = 9;
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
    pub(super) const STRING: u32 = 1;
    pub(super) const INT: u32 = 3;
    pub(super) const DOUBLE: u32 = 4;
}

/// One span, parsed in place.
#[derive(Clone, Debug)]
pub(crate) struct Span<'a> {
    /// Never 0.
    pub(crate) trace_id: u128,
    /// Never 0.
    pub(crate) span_id: u64,
    /// `None` for the root of a trace.
    pub(crate) parent: Option<u64>,
    pub(crate) name: &'a str,
    /// Nanoseconds since 1970.
    pub(crate) start: u64,
    /// Nanoseconds since 1970.
    pub(crate) end: u64,
    fields: Fields<'a>,
}

/// The value of an attribute, of the types that are needed here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Attribute<'a> {
    Text(&'a str),
    Whole(i64),
    Real(f64),
}

impl<'a> Span<'a> {
    /// Its attributes in order; those of other types are omitted.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = (&'a str, Attribute<'a>)> + use<'a> {
        // The whole message was validated before, so nothing in it is malformed.
        self.fields.clone().flatten().filter(|(number, _)| *number == number::ATTRIBUTES).filter_map(|(_, value)| {
            let (mut key, mut held) = ("", None);
            for (number, value) in Fields::of(value.bytes()?).flatten() {
                match number {
                    number::KEY => key = text(value).unwrap_or_default(),
                    number::VALUE => held = attribute(value.bytes()?),
                    _ => {}
                }
            }
            held.map(|held| (key, held))
        })
    }
}

fn text(value: Value<'_>) -> Option<&str> {
    std::str::from_utf8(value.bytes()?).ok()
}

fn attribute(any_value: &[u8]) -> Option<Attribute<'_>> {
    Fields::of(any_value).flatten().fold(None, |held, (number, value)| match (number, value) {
        (number::STRING, value) => text(value).map(Attribute::Text),
        (number::INT, Value::Number(value)) => Some(Attribute::Whole(value as i64)),
        (number::DOUBLE, Value::Fixed64(bits)) => Some(Attribute::Real(f64::from_bits(bits))),
        // A oneof: the last value present counts.
        (1..=7, _) => None,
        _ => held,
    })
}

fn id<const N: usize>(value: Value<'_>) -> Option<[u8; N]> {
    value.bytes()?.try_into().ok()
}

/// Parses every span of an export request in order; returns the number of spans, including those with invalid ids.
///
/// `each` is called for spans with valid ids (trace.proto: an id of all zeros, or of another length, is invalid), even
/// if the message turns out to be malformed later.
pub(crate) fn read<'a>(message: &'a [u8], mut each: impl FnMut(Span<'a>)) -> Result<u64, Malformed> {
    let mut count = 0;
    in_messages(message, number::RESOURCE_SPANS, &mut |resource_spans| {
        in_messages(resource_spans, number::SCOPE_SPANS, &mut |scope_spans| {
            in_messages(scope_spans, number::SPANS, &mut |span| {
                count += 1;
                if let Some(span) = read_span(span)? {
                    each(span);
                }
                Ok(())
            })
        })
    })?;
    Ok(count)
}

/// Validates the fields of a message, and calls `each` for those with this number.
fn in_messages<'a>(
    message: &'a [u8],
    wanted: u32,
    each: &mut dyn FnMut(&'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for field in Fields::of(message) {
        let (number, value) = field?;
        if number == wanted {
            each(value.bytes().ok_or(Malformed)?)?;
        }
    }
    Ok(())
}

fn read_span(bytes: &[u8]) -> Result<Option<Span<'_>>, Malformed> {
    let fields = Fields::of(bytes);
    let (mut trace_id, mut span_id, mut parent) = (0, 0, 0);
    let (mut name, mut start, mut end) = ("", 0, 0);
    for field in fields.clone() {
        let (number, value) = field?;
        match number {
            number::TRACE_ID => trace_id = id(value).map_or(0, u128::from_be_bytes),
            number::SPAN_ID => span_id = id(value).map_or(0, u64::from_be_bytes),
            number::PARENT_SPAN_ID => parent = id(value).map_or(0, u64::from_be_bytes),
            number::NAME => name = text(value).unwrap_or_default(),
            number::START => start = value.fixed64().unwrap_or_default(),
            number::END => end = value.fixed64().unwrap_or_default(),
            number::ATTRIBUTES => check(value.bytes().ok_or(Malformed)?)?,
            _ => {}
        }
    }
    let parent = (parent != 0).then_some(parent);
    Ok((trace_id != 0 && span_id != 0).then_some(Span { trace_id, span_id, parent, name, start, end, fields }))
}

/// Validates an attribute without using it.
fn check(key_value: &[u8]) -> Result<(), Malformed> {
    in_messages(key_value, number::VALUE, &mut |any_value| in_messages(any_value, 0, &mut |_| Ok(())))
}
