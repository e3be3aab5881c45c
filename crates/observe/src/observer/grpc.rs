//! Status of a gRPC call (gRPC over HTTP/2, "Responses").

use std::str;

/// The value of `grpc-status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(u8);

/// Codes in numeric order, with name and HTTP status as mapped in google/rpc/code.proto.
const CODES: [(&str, u16); 17] = [
    ("OK", 200),
    ("CANCELLED", 499),
    ("UNKNOWN", 500),
    ("INVALID_ARGUMENT", 400),
    ("DEADLINE_EXCEEDED", 504),
    ("NOT_FOUND", 404),
    ("ALREADY_EXISTS", 409),
    ("PERMISSION_DENIED", 403),
    ("RESOURCE_EXHAUSTED", 429),
    ("FAILED_PRECONDITION", 400),
    ("ABORTED", 409),
    ("OUT_OF_RANGE", 400),
    ("UNIMPLEMENTED", 501),
    ("INTERNAL", 500),
    ("UNAVAILABLE", 503),
    ("DATA_LOSS", 500),
    ("UNAUTHENTICATED", 401),
];

const UNKNOWN: Status = Status(2);

impl Status {
    pub(super) const OK: Status = Status(0);

    /// Parses the status in this field. Unknown codes become `UNKNOWN`.
    pub(super) fn of(value: &[u8]) -> Option<Status> {
        let code: u32 = str::from_utf8(value).ok()?.trim().parse().ok()?;
        let known = u8::try_from(code).ok().filter(|code| usize::from(*code) < CODES.len());
        Some(known.map_or(UNKNOWN, Status))
    }

    /// `RESOURCE_EXHAUSTED` and so on.
    pub(super) fn name(self) -> &'static str {
        CODES.get(usize::from(self.0)).map_or("UNKNOWN", |(name, _)| name)
    }

    /// The equivalent HTTP status.
    pub(super) fn as_http(self) -> u16 {
        CODES.get(usize::from(self.0)).map_or(500, |(_, http)| *http)
    }
}
