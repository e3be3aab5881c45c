//! The Prometheus text format 0.0.4.

use std::fmt::Error;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// Encodes the page. prometheus-client writes OpenMetrics only. Version 0.0.4 differs in the comment lines: names of
/// counters and infos include their suffix, `info` is a gauge, and there is neither `# UNIT` nor `# EOF`.
pub(super) fn write(registry: &Registry) -> Result<String, Error> {
    let mut open = String::new();
    text::encode_registry(&mut open, registry)?;
    let mut out = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Held back until the type determines the suffix.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
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
