//! Trace context and request IDs that are sent to the server.

use pingora::http::RequestHeader;
use tokometer_observe::input::TraceParent;

/// Returns the trace context to send to the server: a child of the client's span (`true`) or a new trace (`false`). An
/// invalid `traceparent` is replaced by a new trace (W3C Trace Context, section 4.3).
///
/// A new trace is marked as sampled, so that the engine's sampler keeps it.
pub(crate) fn context(head: &RequestHeader) -> (TraceParent, bool) {
    let mut values = head.headers.get_all("traceparent").iter();
    let client = match (values.next(), values.next()) {
        (Some(value), None) => TraceParent::parse(value.as_bytes()),
        _ => None,
    };
    let span_id = fastrand::u64(1..);
    match client {
        Some(client) => (TraceParent { span_id, ..client }, true),
        None => (TraceParent { trace_id: fastrand::u128(1..), span_id, sampled: true }, false),
    }
}

/// Formats the context as a header value.
pub(crate) fn header(context: TraceParent) -> String {
    format!("00-{:032x}-{:016x}-{:02x}", context.trace_id, context.span_id, u8::from(context.sampled))
}

/// A new request ID.
pub(crate) fn request_id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(values: &[&str]) -> RequestHeader {
        let mut head = RequestHeader::build("POST", b"/", None).unwrap();
        for value in values {
            head.append_header("traceparent", *value).unwrap();
        }
        head
    }

    #[test]
    fn valid_trace_is_continued_with_its_flag() {
        let client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let (context, continues) = context(&head(&[client]));
        assert!(continues && context.span_id != 0xb7ad_6b71_6920_3331);
        let sent = header(context);
        assert_eq!((&sent[..36], &sent[52..]), (&client[..36], "-00"));
        assert_eq!(TraceParent::parse(sent.as_bytes()), Some(context));
    }

    #[test]
    fn missing_invalid_and_duplicate_traces_are_replaced() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for values in [&[][..], &["00-0-0-01"], &[valid, valid]] {
            let (created, continues) = context(&head(values));
            assert!(!continues && created.sampled, "{values:?}");
            assert_ne!(created.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        }
    }
}
