//! Errors in addresses and certificates, reported at startup.

use std::io;
use std::io::ErrorKind;
use std::path::PathBuf;

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
    /// A PEM file cannot be read.
    #[error("cannot read {what} {path}: {reason}; check the path and that tokometer's user may read it")]
    Unreadable {
        /// Which TLS file it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
        reason: String,
    },
    /// A PEM file has no section of the expected kind.
    #[error("{what} {path} contains no {expected}; use a PEM file with a `-----BEGIN {expected}-----` section")]
    Empty {
        /// Which TLS file it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The missing PEM section.
        expected: &'static str,
    },
    /// Certificate and key were read, but TLS cannot use them.
    #[error(
        "cannot use certificate {certificate} with key {key}: {reason}; the key must belong to the first certificate of the file"
    )]
    Unusable {
        /// The certificate chain.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
        /// The error from rustls.
        reason: String,
    },
    /// A CA certificate cannot be used.
    #[error("cannot use the CA certificates in {path}: {reason}; use CA certificates in PEM format")]
    Authority {
        /// The file.
        path: PathBuf,
        /// The error from rustls.
        reason: String,
    },
    /// TLS to the server needs a name to check the certificate against.
    #[error("TLS to {upstream} needs `server_name`: the name to check the server's certificate against{detail}")]
    ServerName {
        /// The upstream address.
        upstream: Address,
        /// Why the given name is invalid; empty if none was given.
        detail: String,
    },
}

impl Error {
    /// True unless the process lacks a resource that is not a setting.
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Error::Bind { source, .. } => {
                matches!(
                    source.kind(),
                    ErrorKind::AddrInUse
                        | ErrorKind::AddrNotAvailable
                        | ErrorKind::AlreadyExists
                        | ErrorKind::NotFound
                        | ErrorKind::PermissionDenied
                )
            }
            _ => true,
        }
    }
}
