//! Errors in addresses and certificates, reported at startup.

use std::io;
use std::io::ErrorKind;

use crate::listen::settings::Address;

/// Why a listener cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {fix}")]
    Bind {
        /// The address as configured.
        address: Address,
        /// What the user should do about it.
        fix: &'static str,
        /// The system error.
        source: io::Error,
    },
    /// `original` was given as the address to listen on.
    #[error(
        "`original` is not a listen address: it means the server from which a REDIRECT rule diverts packets; use it as upstream"
    )]
    ListenOnOriginal,
    /// A TLS file or the name of the TLS server cannot be used. The text has the file, the reason and the fix.
    #[error("{0}")]
    Tls(String),
}

impl Error {
    /// True when another socket holds the address.
    pub fn is_address_in_use(&self) -> bool {
        matches!(self, Error::Bind { source, .. } if source.kind() == ErrorKind::AddrInUse)
    }

    /// True unless the process lacks a resource that is not a setting.
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Error::Bind { source, .. } => matches!(
                source.kind(),
                ErrorKind::AddrInUse
                    | ErrorKind::AddrNotAvailable
                    | ErrorKind::AlreadyExists
                    | ErrorKind::NotFound
                    | ErrorKind::PermissionDenied
            ),
            Error::ListenOnOriginal | Error::Tls(_) => true,
        }
    }
}
