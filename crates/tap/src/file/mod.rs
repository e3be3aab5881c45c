//! Capture files: pcap (microseconds and nanoseconds) and pcapng, in both byte orders.
//!
//! Formats: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-06.html> and
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-04.html>.
//!
//! Why no library: errors contain the position in the file, and only the current packet is in memory. In addition,
//! pcap-parser 0.17 reads a big-endian time offset as little-endian, takes a packet that is longer than its block for
//! the end of the file, and rejects the file if a block other than a packet is invalid. pcap-file 3.0.0-rc.2 computes
//! wrong times for binary resolutions, and its time computation overflows (a panic in debug builds).

mod input;
mod pcap;
mod pcapng;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::file::input::Input;
use crate::file::pcap::Pcap;
use crate::file::pcapng::Pcapng;
use crate::packet::OwnedPacket;

pub use input::Error;

/// The packets of a capture file, in file order. After an error, no packets follow.
#[derive(Debug)]
pub struct Packets<R> {
    input: Input<R>,
    format: Option<Format>,
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

/// True if a file that begins with these bytes is a pcap or pcapng file.
pub fn is_capture(magic: [u8; 4]) -> bool {
    Pcapng::is_magic(magic) || Pcap::is_magic(magic)
}

/// Opens a pcap or pcapng file.
///
/// # Errors
/// When the file cannot be opened or does not begin like a capture file.
pub fn read(path: &Path) -> Result<Packets<BufReader<File>>, Error> {
    let file = File::open(path).map_err(|error| Error::Io { offset: 0, error })?;
    Packets::new(BufReader::new(file))
}

impl<R: Read> Packets<R> {
    /// Reads the beginning of a capture file.
    ///
    /// # Errors
    /// When the input is not a capture file.
    pub fn new(input: R) -> Result<Packets<R>, Error> {
        let mut input = Input::new(input);
        let magic = input.array().map_err(|error| match error {
            Error::Truncated { .. } => Error::UnknownFormat,
            error => error,
        })?;
        let format = match Pcap::open(magic, &mut input)? {
            Some(pcap) => Format::Pcap(pcap),
            None => Format::Pcapng(Pcapng::open(magic, &mut input)?),
        };
        Ok(Packets { input, format: Some(format) })
    }
}

impl<R: Read> Iterator for Packets<R> {
    type Item = Result<OwnedPacket, Error>;

    fn next(&mut self) -> Option<Result<OwnedPacket, Error>> {
        let packet = match self.format.as_mut()? {
            Format::Pcap(pcap) => pcap.packet(&mut self.input),
            Format::Pcapng(pcapng) => pcapng.packet(&mut self.input),
        };
        if !matches!(packet, Ok(Some(_))) {
            self.format = None;
        }
        packet.transpose()
    }
}
