//! Bytes of both directions of a connection: the parser makes the same calls at any split, and the same as the naive
//! model.
//!
//! The input is the traffic itself, with four byte values as marks (they never occur in UTF-8 text): `FF` switches to
//! the other direction, `FE` is the server's FIN, `FD` adds 128 to the following byte, `FC` ends a read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_wire::Limits;
use tokometer_fuzz::work::Work;

use tokometer_models::wire::model::agree;
use tokometer_models::wire::traffic::{Step, feed};

/// The traffic in the reads defined by the marks.
fn reads(input: &[u8]) -> Vec<Step> {
    let mut steps = vec![Step::Request(Vec::new())];
    let mut of_client = true;
    let mut bytes = input.iter().copied();
    let turn = |of_client| if of_client { Step::Request(Vec::new()) } else { Step::Response(Vec::new()) };
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            0xff => {
                of_client = !of_client;
                steps.push(turn(of_client));
                continue;
            }
            0xfe => {
                steps.extend([Step::ServerFin, turn(of_client)]);
                continue;
            }
            0xfc => {
                steps.push(turn(of_client));
                continue;
            }
            0xfd => bytes.next().unwrap_or_default() | 0x80,
            byte => byte,
        };
        if let Some(Step::Request(read) | Step::Response(read)) = steps.last_mut() {
            read.push(byte);
        }
    }
    steps
}

/// Joins adjacent reads of one direction.
fn joined(steps: &[Step]) -> Vec<Step> {
    let mut joined: Vec<Step> = Vec::new();
    for step in steps {
        match (joined.last_mut(), step) {
            (Some(Step::Request(read)), Step::Request(more)) => read.extend_from_slice(more),
            (Some(Step::Response(read)), Step::Response(more)) => read.extend_from_slice(more),
            _ => joined.push(step.clone()),
        }
    }
    joined
}

/// Splits reads into single bytes.
fn bytewise(steps: &[Step]) -> Vec<Step> {
    let mut bytewise = Vec::new();
    for step in steps {
        match step {
            Step::Request(read) => bytewise.extend(read.iter().map(|byte| Step::Request(vec![*byte]))),
            Step::Response(read) => bytewise.extend(read.iter().map(|byte| Step::Response(vec![*byte]))),
            Step::ServerFin => bytewise.push(Step::ServerFin),
        }
    }
    bytewise
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let steps = reads(input);
    // Limits that inputs of usual length reach, and the default limits.
    for limits in [Limits { head_bytes: 100 }, Limits::default()] {
        let outcome = feed(limits, &steps);
        assert_eq!(outcome, feed(limits, &joined(&steps)), "joined reads");
        assert_eq!(outcome, feed(limits, &bytewise(&steps)), "bytewise reads");
    }
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    for step in &steps {
        match step {
            Step::Request(read) => requests.extend_from_slice(read),
            Step::Response(read) => responses.extend_from_slice(read),
            Step::ServerFin => {}
        }
    }
    agree(&requests, &responses);
});
