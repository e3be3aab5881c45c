//! Parses the spans of an OTLP export request, limited to the parts that queue times need (opentelemetry-proto 1.x:
//! collector/trace/v1/trace_service.proto, trace/v1/trace.proto, common/v1/common.proto).
//!
//! Spans and attributes are decoded one at a time: `ExportTraceServiceRequest::decode` would need more than 100
//! times the memory of a message of empty spans.

use std::cell::Cell;

use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message, Oneof};

/// `ExportTraceServiceRequest.resource_spans`.
const RESOURCE_SPANS: u32 = 1;
/// `ResourceSpans.scope_spans`.
const SCOPE_SPANS: u32 = 2;
/// `ScopeSpans.spans`.
const SPANS: u32 = 2;
/// `Span.attributes`.
const ATTRIBUTES: u32 = 9;

/// Maximum number of resources, scopes, spans and attributes in a message. Empty ones have two bytes each; real ones have
/// at least 20, so a message of the maximum size has fewer.
pub const MAX_ITEMS: usize = 256 * 1024;

/// Why a message cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not an export request.
    Malformed,
    /// More items than [`MAX_ITEMS`].
    TooManyItems,
}

impl From<DecodeError> for Error {
    fn from(_: DecodeError) -> Error {
        Error::Malformed
    }
}

/// Number of items that may still be parsed.
struct Items(Cell<usize>);

impl Items {
    fn take(&self) -> Result<(), Error> {
        self.0.set(self.0.get().checked_sub(1).ok_or(Error::TooManyItems)?);
        Ok(())
    }
}

/// One span with valid ids.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// Never 0.
    pub trace_id: u128,
    /// Never 0.
    pub span_id: u64,
    /// `None` for the root of a trace.
    pub parent: Option<u64>,
    /// Empty if it is not UTF-8.
    pub name: String,
    /// Nanoseconds since 1970.
    pub start: u64,
    /// Nanoseconds since 1970.
    pub end: u64,
    message: &'a [u8],
}

/// The fields of a span except its attributes. In these types, strings are bytes, because prost refuses messages with
/// invalid UTF-8, while many collectors accept them.
#[derive(Message)]
struct SpanFields {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    name: Vec<u8>,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
}

#[derive(Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(message, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3, 4")]
    value: Option<Value>,
}

/// The value of an attribute. Only the needed types are included.
#[derive(Oneof)]
pub enum Value {
    /// A string.
    #[prost(bytes = "vec", tag = "1")]
    Text(Vec<u8>),
    /// An integer.
    #[prost(int64, tag = "3")]
    Int(i64),
    /// A floating-point number.
    #[prost(double, tag = "4")]
    Double(f64),
}

impl<'a> Span<'a> {
    fn of(message: &'a [u8], items: &Items) -> Result<Option<Span<'a>>, Error> {
        let fields = SpanFields::decode(message)?;
        each_field(message, ATTRIBUTES, items, |attribute| {
            KeyValue::decode(attribute)?;
            Ok(())
        })?;
        let span_id = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes).filter(|id| *id != 0);
        let trace_id = fields.trace_id.as_slice().try_into().ok().map(u128::from_be_bytes).filter(|id| *id != 0);
        Ok(trace_id.zip(span_id(&fields.span_id)).map(|(trace_id, id)| Span {
            trace_id,
            span_id: id,
            parent: span_id(&fields.parent_span_id),
            name: String::from_utf8(fields.name).unwrap_or_default(),
            start: fields.start_time_unix_nano,
            end: fields.end_time_unix_nano,
            message,
        }))
    }

    /// Calls `each` for the attributes in order; skips attributes whose type is not in [`Value`].
    pub fn attributes(&self, mut each: impl FnMut(&str, Value)) {
        let items = Items(Cell::new(MAX_ITEMS));
        let read = each_field(self.message, ATTRIBUTES, &items, |attribute| {
            let KeyValue { key, value } = KeyValue::decode(attribute)?;
            if let Some(value) = value.and_then(|any| any.value) {
                each(std::str::from_utf8(&key).unwrap_or_default(), value);
            }
            Ok(())
        });
        debug_assert!(read.is_ok(), "every attribute was decoded before");
    }
}

/// Parses every span of an export request in order; returns the number of spans, including those with invalid ids.
///
/// `each` is called for spans with valid ids, even if a later part of the message is malformed. An id of all zeros, or
/// of another length, is invalid (trace.proto).
///
/// # Errors
///
/// When the message is not an export request, or has too many items.
pub fn read<'a>(message: &'a [u8], mut each: impl FnMut(Span<'a>)) -> Result<u64, Error> {
    let mut count = 0;
    let items = Items(Cell::new(MAX_ITEMS));
    each_field(message, RESOURCE_SPANS, &items, |resource_spans| {
        each_field(resource_spans, SCOPE_SPANS, &items, |scope_spans| {
            each_field(scope_spans, SPANS, &items, |span| {
                count += 1;
                if let Some(span) = Span::of(span, &items)? {
                    each(span);
                }
                Ok(())
            })
        })
    })?;
    Ok(count)
}

/// Calls `each` for the length-delimited fields of a message with this number; the other fields are skipped.
fn each_field<'a>(
    mut message: &'a [u8],
    wanted: u32,
    items: &Items,
    mut each: impl FnMut(&'a [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    while !message.is_empty() {
        let (number, wire_type) = decode_key(&mut message)?;
        if number != wanted {
            skip_field(wire_type, number, &mut message, DecodeContext::default())?;
            continue;
        }
        items.take()?;
        check_wire_type(WireType::LengthDelimited, wire_type)?;
        let length = usize::try_from(decode_varint(&mut message)?).map_err(|_| Error::Malformed)?;
        let (field, rest) = message.split_at_checked(length).ok_or(Error::Malformed)?;
        message = rest;
        each(field)?;
    }
    Ok(())
}
