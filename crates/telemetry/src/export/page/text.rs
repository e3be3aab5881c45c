//! The text formats: OpenMetrics 1.0.0 with exemplars, and the Prometheus text format 0.0.4.

use std::fmt::{Error, Write};
use std::time::UNIX_EPOCH;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::export::series::distribution::Exemplar;
use crate::export::series::snapshot::{Family, Point, Value};

/// OpenMetrics 1.0.0. prometheus-client writes everything except exemplars, which it accepts only from its own metric
/// types. This function appends the exemplars to the bucket lines, which are in the order of the points.
pub(super) fn openmetrics(registry: &Registry, families: &[Family]) -> Result<String, Error> {
    let mut plain = String::new();
    text::encode(&mut plain, registry)?;
    let mut out = String::with_capacity(plain.len() + plain.len() / 4);
    // Exemplars of the current family, one entry per bucket.
    let mut exemplars = Vec::new().into_iter();
    let mut bucket = String::new();
    for line in plain.lines() {
        out.push_str(line);
        if let Some((name, _)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            bucket = format!("{name}_bucket{{");
            let named = |family: &&Family| family.metric.exemplar && family.metric.prometheus().family() == name;
            let points = families.iter().find(named).map_or(&[][..], |family| &family.points);
            exemplars = points.iter().flat_map(exemplars_of).collect::<Vec<_>>().into_iter();
        } else if line.starts_with(&bucket)
            && let Some(Some(exemplar)) = exemplars.next()
        {
            write_exemplar(&mut out, &exemplar)?;
        }
        out.push('\n');
    }
    Ok(out)
}

/// The exemplars of one series, one entry per bucket.
fn exemplars_of(point: &Point) -> Vec<Option<Exemplar>> {
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

/// Version 0.0.4. prometheus-client writes only OpenMetrics, from which this format differs in the comment lines. Names
/// of counters and infos include their suffix, `info` is a gauge, and there is neither `# UNIT` nor `# EOF`.
pub(super) fn plain(registry: &Registry) -> Result<String, Error> {
    let mut open = String::new();
    text::encode_registry(&mut open, registry)?;
    let mut out = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The help line needs the suffix of the metric type, which is on the next line.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            if let Some((_, help)) = help.take() {
                out.extend(["# HELP ", name, suffix, " ", help, "\n"]);
            }
            out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(out)
}
