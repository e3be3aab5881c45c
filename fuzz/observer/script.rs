//! What happens on connections, one after the other, as an input tells it.

use std::time::Duration;

use tokometer_observe::input::Close;
use tokometer_observe::input::Direction;
use tokometer_observe::input::Side;

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Bytes are read.
    Seen(Direction, Vec<u8>),
    /// The sender finishes.
    Finished(Direction),
    /// The receiver takes no bytes for this long.
    Blocked(Direction, Duration),
    /// Nothing happens for this long.
    Passed(Duration),
    /// The connection ends, and another is accepted. `None`: its observer is dropped before it ends.
    Ended(Option<Close>),
}

/// Reads the marks: `FF` the other direction speaks, `FE` its sender finishes, `FD` a byte of the value that follows,
/// raised by 128; and with a value after them `FC` a read ends and time passes, `FB` the receiver takes no bytes,
/// `FA` the connection ends.
pub(crate) fn steps(input: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut direction = Direction::Request;
    let mut read = Vec::new();
    let mut bytes = input.iter().copied();
    while let Some(byte) = bytes.next() {
        let mut value = || bytes.next().unwrap_or_default();
        let step = match byte {
            0xff => None,
            0xfe => Some(Step::Finished(direction)),
            0xfd => {
                read.push(value() | 0x80);
                continue;
            }
            0xfc => Some(Step::Passed(time(value()))),
            0xfb => Some(Step::Blocked(direction, time(value()))),
            0xfa => Some(Step::Ended(close(value()))),
            byte => {
                read.push(byte);
                continue;
            }
        };
        if !read.is_empty() {
            steps.push(Step::Seen(direction, std::mem::take(&mut read)));
        }
        match step {
            None if direction == Direction::Request => direction = Direction::Response,
            None | Some(Step::Ended(_)) => direction = Direction::Request,
            Some(_) => {}
        }
        steps.extend(step);
    }
    if !read.is_empty() {
        steps.push(Step::Seen(direction, read));
    }
    steps
}

/// From nothing to 6.5 seconds.
fn time(value: u8) -> Duration {
    Duration::from_micros(100) * u32::from(value) * u32::from(value)
}

fn close(value: u8) -> Option<Close> {
    match value % 9 {
        0 => Some(Close::Finished { first: Side::Client }),
        1 => Some(Close::Finished { first: Side::Server }),
        2 => Some(Close::Reset(Side::Client)),
        3 => Some(Close::Reset(Side::Server)),
        4 => Some(Close::Refused),
        5 => Some(Close::ConnectTimeout),
        6 => Some(Close::Drained),
        7 => Some(Close::IdleTimeout),
        _ => None,
    }
}

/// Neighbouring reads of one direction at one time as one read.
pub(crate) fn joined(steps: &[Step]) -> Vec<Step> {
    let mut joined: Vec<Step> = Vec::new();
    for step in steps {
        match (joined.last_mut(), step) {
            (_, Step::Passed(Duration::ZERO)) => {}
            (Some(Step::Seen(direction, read)), Step::Seen(again, more)) if direction == again => {
                read.extend_from_slice(more);
            }
            _ => joined.push(step.clone()),
        }
    }
    joined
}

/// One byte in each read.
pub(crate) fn bytewise(steps: &[Step]) -> Vec<Step> {
    let mut bytewise = Vec::new();
    for step in steps {
        match step {
            Step::Seen(direction, read) => {
                bytewise.extend(read.iter().map(|byte| Step::Seen(*direction, vec![*byte])));
            }
            step => bytewise.push(step.clone()),
        }
    }
    bytewise
}
