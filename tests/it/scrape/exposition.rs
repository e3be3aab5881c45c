//! The parser of metrics pages, compared with a naive parser for arbitrary splits.

use proptest::collection::vec;
use proptest::prelude::*;
use tokometer_engine::scrape::exposition::{LINE_BYTES, Lines, Parser};

/// Name, labels and the bits of the value.
type Sample = (String, Vec<(String, String)>, u64);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Sample>, Lines) {
    let (mut samples, mut parser) = (Vec::new(), Parser::default());
    let mut each = |sample: &tokometer_engine::scrape::exposition::Sample<'_>| {
        let labels = sample.labels.map(|(name, value)| (text(name), text(value))).collect();
        samples.push((text(sample.name), labels, sample.value.to_bits()));
    };
    for piece in pieces {
        parser.feed(piece, &mut each);
    }
    let lines = parser.finish(&mut each);
    (samples, lines)
}

/// The naive parser: processes every line separately, byte by byte, with the whole page in memory.
fn naive(page: &[u8]) -> (Vec<Sample>, Lines) {
    let (mut samples, mut lines) = (Vec::new(), Lines::default());
    for line in page.split(|byte| *byte == b'\n') {
        if line.len() > LINE_BYTES {
            lines.too_long += 1;
            continue;
        }
        let line: Vec<char> = line.iter().map(|byte| char::from(*byte)).collect();
        let mut line: &[char] = &line;
        skip(&mut line);
        if line.is_empty() || line[0] == '#' {
            continue;
        }
        match naive_sample(line) {
            Some(sample) => {
                lines.samples += 1;
                samples.push(sample);
            }
            None => lines.malformed += 1,
        }
    }
    (samples, lines)
}

fn skip(line: &mut &[char]) {
    while line.first().is_some_and(char::is_ascii_whitespace) {
        *line = &line[1..];
    }
}

fn word(line: &mut &[char], colon: bool) -> Option<String> {
    let mut word = String::new();
    while let Some(c) = line.first() {
        if !(c.is_ascii_alphabetic() || *c == '_' || colon && *c == ':' || !word.is_empty() && c.is_ascii_digit()) {
            break;
        }
        word.push(*c);
        *line = &line[1..];
    }
    (!word.is_empty()).then_some(word)
}

fn eat(line: &mut &[char], c: char) -> Option<()> {
    skip(line);
    (line.first() == Some(&c)).then(|| *line = &line[1..])
}

fn naive_sample(mut line: &[char]) -> Option<Sample> {
    let name = word(&mut line, true)?;
    let spaced = line.first().is_some_and(char::is_ascii_whitespace);
    let mut labels = Vec::new();
    if eat(&mut line, '{').is_some() {
        while eat(&mut line, '}').is_none() {
            skip(&mut line);
            let label = word(&mut line, false)?;
            eat(&mut line, '=')?;
            eat(&mut line, '"')?;
            let mut value = String::new();
            while *line.first()? != '"' {
                if line[0] == '\\' {
                    value.push('\\');
                    line = &line[1..];
                    value.push(*line.first()?);
                } else {
                    value.push(line[0]);
                }
                line = &line[1..];
            }
            line = &line[1..];
            skip(&mut line);
            if eat(&mut line, ',').is_none() && line.first() != Some(&'}') {
                return None;
            }
            labels.push((label, value));
        }
    } else if !spaced {
        return None;
    }
    skip(&mut line);
    let value: String = line.iter().take_while(|c| !c.is_ascii_whitespace()).collect();
    // Each character represents a byte, so non-ASCII characters make a number invalid.
    Some((name, labels, value.parse::<f64>().ok()?.to_bits()))
}

fn one(line: &str) -> Option<Sample> {
    let (samples, lines) = read([line.as_bytes()]);
    assert_eq!(lines.samples + lines.malformed, 1, "{line}");
    samples.into_iter().next()
}

#[test]
fn each_form_of_a_line_is_parsed() {
    let plain = |name: &str, value: f64| Some((name.to_owned(), Vec::new(), value.to_bits()));
    let with = |name: &str, labels: &[(&str, &str)], value: f64| {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Some((name.to_owned(), labels, value.to_bits()))
    };
    let table = [
        ("up 1", plain("up", 1.0)),
        ("  up \t 1.5e3 \r", plain("up", 1500.0)),
        ("vllm:x 2 1395066363000", plain("vllm:x", 2.0)),
        ("x_total 17.0 1520879607.789", plain("x_total", 17.0)),
        ("x +Inf", plain("x", f64::INFINITY)),
        ("x -Inf", plain("x", f64::NEG_INFINITY)),
        ("x{} 3", plain("x", 3.0)),
        ("x{a=\"b\"} 3", with("x", &[("a", "b")], 3.0)),
        ("x{a=\"b\",} 3", with("x", &[("a", "b")], 3.0)),
        ("x { a = \"b\" , c = \"d\" } 3", with("x", &[("a", "b"), ("c", "d")], 3.0)),
        ("x{a=\"}\",b=\"\\\"{,\"}4", with("x", &[("a", "}"), ("b", "\\\"{,")], 4.0)),
        ("x_bucket{le=\"0.1\"} 8 # {trace_id=\"a\"} 0.067 1.5", with("x_bucket", &[("le", "0.1")], 8.0)),
        ("x", None),
        ("x1", None),
        ("1x 2", None),
        ("x y", None),
        ("x{a=\"b\" 3", None),
        ("x{a=\"b\"c=\"d\"} 3", None),
        ("x{a=b} 3", None),
        ("x{a=\"b} 3", None),
        ("{\"x\",a=\"b\"} 3", None),
        ("x{\"x\"} 3", None),
        ("<html>", None),
    ];
    for (line, want) in table {
        assert_eq!(one(line), want, "{line}");
    }
    assert!(f64::from_bits(one("x NaN").unwrap().2).is_nan());
}

#[test]
fn recorded_page_is_parsed_alike_at_every_cut() {
    let recorded = super::engines::file("recorded/vllm-0.32.0.txt");
    let from = recorded.find("vllm:num_requests_running{").unwrap();
    let page = &recorded.as_bytes()[from..from + 4000];
    let whole = read([page]);
    assert_eq!(whole, naive(page));
    assert!(whole.1.samples > 10);
    for cut in 0..=page.len() {
        assert_eq!(read([&page[..cut], &page[cut..]]), whole, "cut at {cut}");
    }
    assert_eq!(read(page.chunks(1)), whole);
    assert_eq!(read([recorded.as_bytes()]), naive(recorded.as_bytes()));
    assert_eq!(read(recorded.as_bytes().chunks(1)).1.malformed, 0);
}

#[test]
fn too_long_line_is_skipped_and_the_next_is_parsed() {
    let long = "x".repeat(LINE_BYTES);
    let page = format!("{long} 1\na 2\n{long}\nb{{c=\"{long}\"}} 3\nd 4");
    for size in [1, 100, LINE_BYTES, page.len()] {
        let (samples, lines) = read(page.as_bytes().chunks(size));
        let names: Vec<&str> = samples.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["a", "d"]);
        // The malformed line has exactly the maximum length; it is parsed, but is not a sample.
        assert_eq!(lines, Lines { samples: 2, malformed: 1, too_long: 2 });
    }
}

/// Lines that are valid samples or almost valid.
fn line() -> impl Strategy<Value = String> {
    let space = || prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\t ")];
    let name = prop_oneof![4 => "[a-z_:]{1,6}", 1 => "[0-9a-z:é-]{0,4}"];
    let label = ("[a-z_]{0,4}", "([a-z,={} é]|\\\\[\"\\\\n]){0,6}", space(), space())
        .prop_map(|(name, value, a, b)| format!("{a}{name}{b}={a}\"{value}\"{b}"));
    let labels = prop_oneof![
        2 => Just(String::new()),
        3 => (vec(label, 0..4), prop_oneof![3 => Just("}"), 1 => Just(",}"), 1 => Just("")])
            .prop_map(|(labels, end)| format!("{{{}{end}", labels.join(","))),
    ];
    let value = prop_oneof![
        (-1e9..1e9).prop_map(|value: f64| value.to_string()),
        (0u32..9).prop_map(|value| value.to_string()),
        Just("NaN".to_owned()),
        Just("+Inf".to_owned()),
        "[0-9.e+x-]{0,5}"
    ];
    let after = prop_oneof![3 => Just(""), 1 => Just(" 1395066363000"), 1 => Just(" # {a=\"b\"} 1"), 1 => Just("\r")];
    let sample = (space(), name, labels, space(), value, after)
        .prop_map(|(a, name, labels, b, value, after)| format!("{a}{name}{labels} {b}{value}{after}"));
    prop_oneof![6 => sample, 1 => Just(String::new()), 1 => "# [A-Z]{4} .{0,10}", 1 => "[ -~\t]{0,20}"]
}

proptest! {
    #[test]
    fn pages_are_parsed_like_the_naive_parser_does(lines in vec(line(), 0..12), cuts in vec(any::<prop::sample::Index>(), 0..6), ends in any::<bool>()) {
        let page = lines.join("\n") + if ends { "\n" } else { "" };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(page.len() + 1)).collect();
        cuts.sort_unstable();
        let mut start = 0;
        let pieces: Vec<&[u8]> = cuts.into_iter().chain([page.len()]).map(|end| &page.as_bytes()[std::mem::replace(&mut start, end)..end]).collect();
        let model = naive(page.as_bytes());
        // The naive parser maps bytes to characters, so the parser's texts are converted in the same way.
        let latin = |text: String| text.bytes().map(char::from).collect::<String>();
        let (samples, lines) = read(pieces);
        let samples: Vec<Sample> = samples.into_iter().map(|(name, labels, value)| (latin(name), labels.into_iter().map(|(n, v)| (latin(n), latin(v))).collect(), value)).collect();
        prop_assert_eq!((samples, lines), model);
    }

    #[test]
    fn arbitrary_bytes_are_parsed_alike_in_pieces(page in vec(any::<u8>(), 0..400), size in 1usize..40) {
        prop_assert_eq!(read([page.as_slice()]), read(page.chunks(size)));
    }
}
