//! OpenMetrics 1.0.0 with exemplars.

use std::fmt::Error;
use std::fmt::Write;
use std::time::UNIX_EPOCH;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::export::distribution::Exemplar;
use crate::export::page::Family;
use crate::export::page::Value;

/// Encodes the page. prometheus-client writes everything except exemplars, which it accepts only from its own metric
/// types. They are appended here to the bucket lines, which are in the order of the points.
pub(super) fn write(registry: &Registry, families: &[Family]) -> Result<String, Error> {
    let mut plain = String::new();
    text::encode(&mut plain, registry)?;
    let mut out = String::with_capacity(plain.len() + plain.len() / 4);
    let mut exemplars: Box<dyn Iterator<Item = Option<Exemplar>>> = Box::new(std::iter::empty());
    let mut bucket = String::new();
    for line in plain.lines() {
        out.push_str(line);
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().unwrap_or_default();
            bucket = format!("{name}_bucket{{");
            exemplars = match families.iter().find(|family| family.metric.prometheus().family() == name) {
                Some(family) if family.metric.exemplar => Box::new(family.points.iter().flat_map(exemplars_of)),
                _ => Box::new(std::iter::empty()),
            };
        } else if line.starts_with(&bucket)
            && let Some(Some(exemplar)) = exemplars.next()
        {
            write_exemplar(&mut out, &exemplar)?;
        }
        out.push('\n');
    }
    Ok(out)
}

/// One entry per bucket.
fn exemplars_of(point: &crate::export::page::Point) -> Vec<Option<Exemplar>> {
    match &point.value {
        Value::Histogram(state) if state.exemplars.is_empty() => vec![None; state.counts.len()],
        Value::Histogram(state) => state.exemplars.clone(),
        _ => Vec::new(),
    }
}

fn write_exemplar(out: &mut String, exemplar: &Exemplar) -> Result<(), Error> {
    let Exemplar { trace_id, span_id, value, at } = exemplar;
    write!(out, " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {value}")?;
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => write!(out, " {}.{:03}", since.as_secs(), since.subsec_millis()),
        Err(_) => Ok(()),
    }
}
