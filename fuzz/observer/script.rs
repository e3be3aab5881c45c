//! Consecutive events on connections, as defined by an input.

use std::time::Duration;

use tokometer_observe::input::{Close, Direction, Side};

/// One event.
#[derive(Clone, Debug)]
pub enum Step {
    /// Bytes are read.
    Seen(Direction, Vec<u8>),
    /// The sender finishes.
    Finished(Direction),
    /// The receiver accepts no bytes for this long.
    Blocked(Direction, Duration),
    /// Nothing happens for this long.
    Passed(Duration),
    /// The connection ends and another is accepted. `None`: its observer is dropped without a call to `closed`.
    Ended(Option<Close>),
}

/// Interprets the marks: `FF` switches to the other direction, `FE` ends its sender's stream, `FD` adds 128 to the
/// following byte. Followed by a value: `FC` ends a read and time passes, `FB` blocks the receiver, `FA` ends the
/// connection.
pub fn steps(input: &[u8]) -> Vec<Step> {
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

/// From 0 to 6.5 seconds.
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

/// Joins adjacent reads of one direction with the same time.
pub fn joined(steps: &[Step]) -> Vec<Step> {
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

/// Splits reads into single bytes.
pub fn bytewise(steps: &[Step]) -> Vec<Step> {
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
