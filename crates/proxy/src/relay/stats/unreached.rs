//! Why a server could not be reached.

use std::io::{self, ErrorKind};

use tokometer_metrics::closed_enum;

closed_enum! {
    /// Why a server could not be reached.
    pub enum Unreached {
        /// No program listens at the address.
        Refused = "refused",
        /// The server did not accept the connection in time.
        Timeout = "timeout",
        /// The host name could not be resolved to an address.
        NameResolution = "name_resolution",
        /// The network has no route to the address.
        Unreachable = "unreachable",
        /// The TLS handshake failed.
        Tls = "tls",
        /// Any other error.
        Other = "other",
    }
}

/// An error whose reason is known from the step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct ReasonedError {
    why: Unreached,
    error: io::Error,
}

impl Unreached {
    /// Marks the error with this reason; its kind and text stay the same.
    pub(crate) fn mark(self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), ReasonedError { why: self, error })
    }

    /// The reason for a connect error.
    pub fn of(error: &io::Error) -> Unreached {
        if let Some(known) = error.get_ref().and_then(|inner| inner.downcast_ref::<ReasonedError>()) {
            return known.why;
        }
        match error.kind() {
            // `NotFound`: the file of a Unix socket is missing.
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Unreached::Refused,
            ErrorKind::TimedOut => Unreached::Timeout,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
                Unreached::Unreachable
            }
            _ => Unreached::Other,
        }
    }
}

impl Unreached {
    /// What to check or change.
    pub fn advice(self) -> &'static str {
        match self {
            Unreached::Refused => {
                "Start the server, or correct `upstream` if the server listens on another address or port."
            }
            Unreached::Timeout | Unreached::Unreachable => {
                "Check that the server is running, correct the address in `upstream`, or allow the connection in \
                 firewalls and network policies."
            }
            Unreached::NameResolution => "Correct the host name in `upstream`, or check the DNS server.",
            Unreached::Tls => {
                "Check whether the server uses TLS on this port, and correct `upstream_tls` (`ca`, `server_name`, \
                 client certificate)."
            }
            Unreached::Other => "Correct `upstream`.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_follows_the_step_that_failed_then_the_kind() {
        for (error, why) in [
            (ErrorKind::ConnectionRefused.into(), Unreached::Refused),
            (ErrorKind::NotFound.into(), Unreached::Refused),
            (ErrorKind::TimedOut.into(), Unreached::Timeout),
            (ErrorKind::HostUnreachable.into(), Unreached::Unreachable),
            (ErrorKind::NetworkUnreachable.into(), Unreached::Unreachable),
            (ErrorKind::PermissionDenied.into(), Unreached::Other),
            (Unreached::NameResolution.mark(ErrorKind::NotFound.into()), Unreached::NameResolution),
            (Unreached::Tls.mark(ErrorKind::ConnectionRefused.into()), Unreached::Tls),
        ] {
            assert_eq!(Unreached::of(&error), why, "{error:?}");
        }
        let marked = Unreached::Tls.mark(io::Error::new(ErrorKind::InvalidData, "bad certificate"));
        assert_eq!((marked.kind(), marked.to_string()), (ErrorKind::InvalidData, "bad certificate".to_owned()));
    }
}
