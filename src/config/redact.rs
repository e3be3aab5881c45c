//! Hides secrets: header values, and credentials and queries in URLs.

use crate::config::shape;
use crate::config::value::{Node, Value};

const HIDDEN: &str = "<redacted>";

/// True for keys whose values are never shown.
pub(crate) fn is_secret(path: &str) -> bool {
    path.split('.').any(|step| step == "headers")
}

/// A URL without user, password and query, safe to display.
pub fn url(text: &str) -> String {
    let (address, query) = text.split_once('?').map_or((text, false), |(address, _)| (address, true));
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.find('/').map_or((rest, ""), |cut| rest.split_at(cut));
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{HIDDEN}@{host}"),
        None => authority.to_owned(),
    };
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    let query = if query { format!("?{HIDDEN}") } else { String::new() };
    format!("{scheme}{authority}{path}{query}")
}

/// Hides every secret of the tree under this path.
pub(crate) fn tree(path: &str, node: &mut Node) {
    match &mut node.value {
        Value::Map(entries) => {
            for entry in entries {
                let path = shape::join(path, &entry.key);
                tree(&path, &mut entry.node);
            }
        }
        Value::List(items) => items.iter_mut().for_each(|item| tree(path, item)),
        Value::Text(text) if is_secret(path) => *text = HIDDEN.to_owned(),
        Value::Text(text) if path.ends_with("endpoint") || path.ends_with("upstream") => *text = url(text),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn url_loses_credentials_and_query() {
        let table = [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("https://u:p@otel.example/v1/traces?api_key=1", "https://<redacted>@otel.example/v1/traces?<redacted>"),
            ("127.0.0.1:8001", "127.0.0.1:8001"),
            ("unix:/run/vllm.sock", "unix:/run/vllm.sock"),
            ("http://a@b@c/d", "http://<redacted>@c/d"),
        ];
        for (url, shown) in table {
            assert_eq!(super::url(url), shown);
        }
    }
}
