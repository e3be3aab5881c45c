//! A strict parser for both text formats: panics on anything that a scraper would reject or misread.

use std::collections::{BTreeMap, HashSet};

/// Samples by name and labels. Labels with an empty value are omitted, because Prometheus treats them as absent.
pub(crate) type Samples = BTreeMap<Name, f64>;

/// A sample's name and labels.
pub(crate) type Name = (String, BTreeMap<String, String>);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    OpenMetrics,
    Plain,
}

/// An exemplar: its labels and value.
#[derive(Debug, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) sample: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

pub(crate) struct Parsed {
    pub(crate) samples: Samples,
    pub(crate) exemplars: Vec<Exemplar>,
    pub(crate) types: BTreeMap<String, String>,
}

pub(crate) fn parse(text: &str, form: Form) -> Parsed {
    let open = form == Form::OpenMetrics;
    let body = if open {
        text.strip_suffix("# EOF\n").expect("an OpenMetrics page must end with # EOF")
    } else {
        assert!(text.ends_with('\n'));
        text
    };
    assert!(!body.contains("# EOF"));
    let mut parsed = Parsed { samples: Samples::new(), exemplars: Vec::new(), types: BTreeMap::new() };
    let (mut family, mut kind, mut helped) = (String::new(), String::new(), String::new());
    let mut seen = HashSet::new();
    for line in body.lines() {
        assert!(!line.is_empty() && line == line.trim(), "{line:?}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(!help.is_empty());
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, word) = rest.split_once(' ').expect("a type");
            assert_eq!(name, helped, "help and type must be adjacent");
            assert!(seen.insert(name.to_owned()), "duplicate {name}");
            let known: &[&str] =
                if open { &["counter", "gauge", "histogram", "info"] } else { &["counter", "gauge", "histogram"] };
            assert!(known.contains(&word), "{word}");
            // The family name excludes `_total` in OpenMetrics and includes it in 0.0.4.
            assert!(word != "counter" || name.ends_with("_total") != open, "{name}");
            (family, kind) = (name.to_owned(), word.to_owned());
            parsed.types.insert(family.clone(), kind.clone());
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            assert!(open);
            let (name, unit) = rest.split_once(' ').expect("a unit");
            assert_eq!(name, family);
            assert!(name.ends_with(&format!("_{unit}")), "{line}");
        } else {
            assert!(!line.starts_with('#'), "{line}");
            sample(line, open, &family, &kind, &mut parsed);
        }
    }
    histograms(&parsed);
    parsed
}

fn sample(line: &str, open: bool, family: &str, kind: &str, parsed: &mut Parsed) {
    let end = line.find(['{', ' ']).expect("a value");
    let (name, rest) = line.split_at(end);
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{name}");
    let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{name} is not in family {family}"));
    let allowed: &[&str] = match (kind, open) {
        ("counter", true) => &["_total"],
        ("info", _) => &["_info"],
        ("histogram", _) => &["_bucket", "_sum", "_count"],
        _ => &[""],
    };
    assert!(allowed.contains(&suffix), "{line} in a {kind}");
    let (labels, rest) = if rest.starts_with('{') { braces(rest) } else { (BTreeMap::new(), rest) };
    let rest = rest.strip_prefix(' ').expect("a space before the value");
    let (value, exemplar) = match rest.split_once(" # ") {
        Some((value, exemplar)) => (value, Some(exemplar)),
        None => (rest, None),
    };
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
    if let Some(exemplar) = exemplar {
        assert!(open && suffix == "_bucket", "{line}");
        let (inner, rest) = braces(exemplar);
        assert!(inner.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>() <= 128);
        let mut numbers = rest.trim_start().split(' ').map(|n| n.parse::<f64>().expect("a number"));
        let seen = numbers.next().expect("a value");
        numbers.next().expect("a time");
        assert!(numbers.next().is_none());
        assert!(seen <= bound(&labels), "{line}");
        parsed.exemplars.push(Exemplar { sample: name.to_owned(), labels: inner, value: seen });
    }
    let labels: BTreeMap<_, _> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let twice = parsed.samples.insert((name.to_owned(), labels), value);
    assert!(twice.is_none(), "duplicate sample {line}");
}

fn bound(labels: &BTreeMap<String, String>) -> f64 {
    match labels["le"].as_str() {
        "+Inf" => f64::INFINITY,
        le => le.parse().expect("a bound"),
    }
}

/// Parses `{a="b",c="d"}`; returns the labels and the remaining text.
fn braces(text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    let mut rest = text.strip_prefix('{').expect("a brace");
    while !rest.starts_with('}') {
        let (name, after) = rest.split_once("=\"").expect("a label");
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{name}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("a closing quote") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("an escaped character").1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("invalid escape \\{c}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none());
        rest = &after[end + 1..];
        if let Some(next) = rest.strip_prefix(',') {
            assert!(!next.starts_with('}'), "a trailing comma");
            rest = next;
        }
    }
    (labels, &rest[1..])
}

/// Checks that buckets are cumulative, and that `+Inf` equals the count.
fn histograms(parsed: &Parsed) {
    let mut buckets: BTreeMap<Name, Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in &parsed.samples {
        if let Some(family) = name.strip_suffix("_bucket") {
            let mut rest = labels.clone();
            rest.remove("le");
            buckets.entry((family.to_owned(), rest)).or_default().push((bound(labels), *value));
        }
    }
    for ((family, labels), mut found) in buckets {
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(found.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{family} {labels:?}");
        let (last, count) = found[found.len() - 1];
        assert_eq!(last, f64::INFINITY);
        assert_eq!(parsed.samples[&(format!("{family}_count"), labels.clone())], count);
        assert!(parsed.samples.contains_key(&(format!("{family}_sum"), labels)));
    }
}
