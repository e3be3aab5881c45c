//! Errors in addresses and certificates, reported at startup.

use std::io;
use std::io::ErrorKind;

use crate::listen::settings::Address;

/// Why a listener cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Listening on the address failed.
    #[error("cannot listen on {address}: {source}; {fix}")]
    Bind {
        /// The address as configured.
        address: Address,
        /// What the user should do about it.
        fix: &'static str,
        /// The system error.
        source: io::Error,
    },
    /// `original` was configured as the listen address.
    #[error(
        "`original` is not a listen address: it denotes the server from which a REDIRECT rule diverts packets; use it as upstream"
    )]
    ListenOnOriginal,
    /// A TLS file or the TLS server name is unusable. The text contains the file, the reason and the fix.
    #[error("{0}")]
    Tls(String),
}

impl Error {
    /// True if the address is in use.
    pub fn is_address_in_use(&self) -> bool {
        matches!(self, Error::Bind { source, .. } if source.kind() == ErrorKind::AddrInUse)
    }

    /// True if the configuration is at fault; false if the process lacks a resource.
    pub fn is_config_error(&self) -> bool {
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
