//! What can be wrong with an address or a certificate, told at start.

use std::io;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::listen::settings::Address;

/// Why a pair cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {mend}")]
    Bind {
        /// The address as configured.
        address: Address,
        /// What to do about it.
        mend: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// `original` was given as the address to listen on.
    #[error(
        "`original` is no address to listen on: it stands for the server that a REDIRECT rule took packets from; use it as upstream"
    )]
    ListenOnOriginal,
    /// A PEM file cannot be read.
    #[error("cannot read {what} {path}: {reason}; check the path, and that the user tokometer runs as may read it")]
    Unreadable {
        /// Which of the TLS files it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A PEM file holds nothing of the kind that belongs there.
    #[error("{what} {path} holds no {expected}; give a PEM file with a `-----BEGIN {expected}-----` section")]
    Empty {
        /// Which of the TLS files it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The PEM section that is missing.
        expected: &'static str,
    },
    /// Certificate and key are read, but TLS cannot use them.
    #[error(
        "cannot use certificate {certificate} with key {key}: {reason}; the key must belong to the first certificate of the file"
    )]
    Unusable {
        /// The certificate chain.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
        /// What rustls said.
        reason: String,
    },
    /// An authority's certificate cannot be used.
    #[error("cannot trust the authorities in {path}: {reason}; give CA certificates in PEM")]
    Authority {
        /// The file.
        path: PathBuf,
        /// What rustls said.
        reason: String,
    },
    /// TLS towards the server needs a name to check the certificate against.
    #[error("TLS to {upstream} needs `server_name`: the name that the server's certificate is checked against{detail}")]
    ServerName {
        /// The upstream address.
        upstream: Address,
        /// What is wrong with the name that was given; empty if none was.
        detail: String,
    },
}

impl Error {
    /// True unless the process has run out of something that no setting names.
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
