//! Content negotiation: selects the exposition format for a scraper.

/// Exposition formats, in ascending order of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Form {
    /// The Prometheus text format 0.0.4.
    Plain,
    /// OpenMetrics 1.0.0, with exemplars.
    OpenMetrics,
    /// Delimited protobuf messages: the only format with native histograms.
    Protobuf,
}

impl Form {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Form::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The format with the highest weight (RFC 9110 section 12.5.1); among equal weights, the one with the most features.
/// Unsupported formats are skipped. If none of the requested formats is supported, the result is plain text, as in
/// Prometheus' own client libraries.
pub(super) fn negotiate(accept: Option<&str>) -> Form {
    let ranges = accept.unwrap_or("").split(',').filter_map(parse_range);
    ranges.fold((0.0, Form::Plain), |best, range| if range > best { range } else { best }).1
}

/// The weight and format of one media range; `None` if the format is not supported or its weight is 0.
fn parse_range(range: &str) -> Option<(f64, Form)> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let mut weight = 1.0;
    let (mut version, mut proto, mut encoding) = (None, None, None);
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => weight = value.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q))?,
            "version" => version = Some(value.to_owned()),
            "proto" => proto = Some(value.to_owned()),
            "encoding" => encoding = Some(value.to_owned()),
            _ => {}
        }
    }
    let form = match media.as_str() {
        "application/vnd.google.protobuf"
            if proto.as_deref() == Some("io.prometheus.client.MetricFamily")
                && encoding.as_deref() == Some("delimited") =>
        {
            Form::Protobuf
        }
        "application/openmetrics-text" if matches!(version.as_deref(), None | Some("1.0.0")) => Form::OpenMetrics,
        "text/plain" if matches!(version.as_deref(), None | Some("0.0.4")) => Form::Plain,
        "text/*" | "*/*" => Form::Plain,
        _ => return None,
    };
    (weight > 0.0).then_some((weight, form))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_follows_the_weights() {
        const PROTOBUF: &str =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let cases = [
            (None, Form::Plain),
            (Some(""), Form::Plain),
            (Some("*/*"), Form::Plain),
            (Some("text/html, */*;q=0.1"), Form::Plain),
            (Some("application/openmetrics-text"), Form::OpenMetrics),
            (Some("application/openmetrics-text; version=1.0.0; charset=utf-8"), Form::OpenMetrics),
            (Some("application/openmetrics-text; version=0.0.1"), Form::Plain),
            (Some("application/openmetrics-text;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.5"), Form::Plain),
            (Some("application/openmetrics-text;q=0"), Form::Plain),
            (Some("APPLICATION/OpenMetrics-Text ; Version=\"1.0.0\" ; Q=0.9"), Form::OpenMetrics),
            (Some("application/json"), Form::Plain),
            (Some("application/openmetrics-text;q=nonsense"), Form::Plain),
        ];
        for (accept, want) in cases {
            assert_eq!(negotiate(accept), want, "{accept:?}");
        }
        // The `Accept` headers of Prometheus 3, without and with native histograms.
        let text = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(negotiate(Some(text)), Form::OpenMetrics);
        assert_eq!(negotiate(Some(&format!("{PROTOBUF};escaping=allow-utf-8;q=0.7,{text}"))), Form::Protobuf);
        assert_eq!(negotiate(Some("application/vnd.google.protobuf;encoding=text")), Form::Plain);
        assert_eq!(negotiate(Some(&format!("application/openmetrics-text,{PROTOBUF}"))), Form::Protobuf);
    }
}
