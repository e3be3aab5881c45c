//! The excerpt that `make test` prints from the log of a failed stage.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The output of `tests/excerpt.sh` for this log.
fn excerpt(log: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("log");
    std::fs::write(&path, log).expect("the log is written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/excerpt.sh");
    let output = Command::new(script).arg(&path).output().expect("bash and awk");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn excerpt_of_tests_lists_failed_and_hanging_tests() {
    let log = "\
running 4 tests
test a::good ... ok
test b::bad ... \u{1b}[31mFAILED\u{1b}[m
test c::slow has been running for over 60 seconds
test d::stuck has been running for over 60 seconds
test c::slow ... ok

failures:

---- b::bad stdout ----
a | table
    of things

thread 'b::bad' (77) panicked at tests/it/b.rs:4:5:
assertion `left == right` failed: why
  left: 1
 right: 2
stack backtrace:
   0: begin_unwind
note: Some details are omitted.


failures:
    b::bad

test result: \u{1b}[31mFAILED\u{1b}[m. 2 passed; 1 failed

\u{1b}[1m\u{1b}[91merror\u{1b}[0m: test failed, to rerun pass `--test it`
";
    let expected = "\
failed: b::bad
never ended: d::stuck
thread 'b::bad' (77) panicked at tests/it/b.rs:4:5:
assertion `left == right` failed: why
  left: 1
 right: 2
error: test failed, to rerun pass `--test it`
";
    assert_eq!(excerpt(log), expected);
}

#[test]
fn excerpt_of_python_tests_shows_the_exception() {
    let log = "  pass first (1.0 s)
Traceback (most recent call last):
  File \"main.py\", line 47, in main
    test()
    ~~~~^^
  File \"engine.py\", line 12, in it_counts
    assert counted == 2, counted
           ^^^^^^^^^^^^
AssertionError: 1
of 2
  FAIL it_counts (2.0 s)
  pass third (1.0 s)
engine: 2 passed, 1 failed, 0 skipped
";
    let expected = "  File \"engine.py\", line 12, in it_counts
    assert counted == 2, counted
AssertionError: 1
of 2
  FAIL it_counts (2.0 s)
engine: 2 passed, 1 failed, 0 skipped
";
    assert_eq!(excerpt(log), expected);
}

#[test]
fn excerpt_of_a_compiler_shows_errors_with_their_places() {
    let log = "   Compiling x\nerror[E0308]: mismatched types\n --> src/x.rs:1:2\n  |\n1 | let x\n  |\nwarning: y\n\nerror: could not compile `x`\n";
    let expected = "error[E0308]: mismatched types\n --> src/x.rs:1:2\nerror: could not compile `x`\n";
    assert_eq!(excerpt(log), expected);
}

#[test]
fn excerpt_is_short_and_falls_back_to_the_end_of_the_log() {
    let lines = |word: &str| {
        (1..=100).fold(String::new(), |mut text, n| {
            writeln!(text, "{word}{n}").expect("writing to a string cannot fail");
            text
        })
    };
    let stated = excerpt(&lines(""));
    assert_eq!((stated.lines().next(), stated.lines().count()), (Some("76"), 25));
    let stated = excerpt(&lines("error: number "));
    assert_eq!(stated.lines().count(), 60);
    assert!(
        stated.ends_with("number 58\n(and 41 more lines, in the stage's own output)\nerror: number 100\n"),
        "{stated}"
    );
}
