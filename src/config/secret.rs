//! What of the configuration is secret, and how keys and URLs are shown without it.

/// What is shown in place of a secret.
pub(crate) const HIDDEN: &str = "<redacted>";

/// True for keys whose values are never shown.
pub(crate) fn is_secret(path: &str) -> bool {
    path.split('.').any(|step| step == "headers") || is_tenant(path)
}

/// The map from the names of tenants to labels.
pub(crate) const TENANT_NAMES: &str = "tenants.names";

/// True for lists of tenants, as named by clients.
pub(crate) fn is_tenant(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, key)| key.split('[').next() == Some("tenants"))
}

/// The path without the name of a tenant.
pub(crate) fn shown_path(path: &str) -> String {
    let is_name = path.strip_prefix(TENANT_NAMES).is_some_and(|rest| rest.starts_with('.'));
    if is_name { format!("{TENANT_NAMES}.{HIDDEN}") } else { path.to_owned() }
}

/// A URL without user, password and query, safe to display.
pub fn shown_url(text: &str) -> String {
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
            assert_eq!(super::shown_url(url), shown);
        }
    }
}
