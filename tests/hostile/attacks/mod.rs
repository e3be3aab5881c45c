//! The attacks.

mod admin;
mod coded;
mod descriptors;
mod framing;
mod headers;
mod memory;
mod metering;
mod process;
mod sharing;

pub(crate) use headers::hostile_response;

use crate::Outcome;
use crate::attack::Attack;

/// Bytes sent by attacks whose cost is measured.
const MB: usize = 1_000_000;

/// Number of connections of the multi-connection attacks.
const MANY: usize = 100;

/// A path whose requests tokometer parses.
const CHAT: &str = "/v1/chat/completions";

/// All attacks.
pub(crate) fn all() -> Outcome<Vec<Attack>> {
    let mut all = coded::attacks()?;
    all.extend(framing::attacks());
    all.extend(headers::attacks());
    all.extend(memory::attacks());
    all.extend(admin::attacks());
    all.extend(descriptors::attacks());
    all.extend(metering::attacks());
    all.extend(sharing::attacks());
    all.extend(process::attacks()?);
    Ok(all)
}
