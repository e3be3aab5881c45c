//! The listeners: addresses, TLS, and conflicts between them.

use crate::config::address;
use crate::config::checked::Problems;
use crate::config::raw;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::ClientTls;
use tokometer_proxy::listen::Pair;
use tokometer_proxy::listen::ServerTls;

/// Checks the listeners; invalid ones are left out.
pub(super) fn checked(raw: &[raw::Pair], problems: &mut Problems<'_>) -> Vec<Pair> {
    if raw.is_empty() {
        problems.error(
            "pairs",
            "no listener is configured; add one with `listen` and `upstream`, or use --listen and --upstream",
        );
    }
    let pairs: Vec<(usize, Pair)> =
        raw.iter().enumerate().filter_map(|(index, raw)| Some((index, pair(index, raw, problems)?))).collect();
    for (place, (index, pair)) in pairs.iter().enumerate() {
        for (other_index, other) in pairs.iter().take(place) {
            if address::collide(&pair.listen, &other.listen) {
                problems.error(
                    &format!("pairs[{index}].listen"),
                    format!(
                        "pairs[{other_index}] already listens on `{}`; use a separate address for each listener",
                        raw_listen(raw, *other_index)
                    ),
                );
            }
            if pair.name == other.name && !address::collide(&pair.listen, &other.listen) {
                problems.error(
                    &format!("pairs[{index}].name"),
                    format!("pairs[{other_index}] already has the name `{}`; use unique names", pair.name),
                );
            }
        }
    }
    tell_loops(&pairs, problems);
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// The admin address must be neither a listen address nor an upstream.
pub(super) fn keep_clear_of_admin(pairs: &[Pair], admin: &Address, problems: &mut Problems<'_>) {
    for pair in pairs {
        if address::collide(&pair.listen, admin) {
            problems.error(
                "admin.listen",
                format!(
                    "the listener `{}` already uses this address; use another port for the admin server, such as {}",
                    pair.name,
                    other_port(admin, 9464)
                ),
            );
        }
        if address::reaches(&pair.upstream, admin) {
            problems.error(
                "admin.listen",
                format!("this is the upstream of the listener `{}`; use another port for the admin server", pair.name),
            );
        }
    }
}

/// A port to suggest, different from the one in use.
pub(super) fn other_port(taken: &Address, usual: u16) -> u16 {
    let is_usual = matches!(taken, Address::Tcp { port, .. } if *port == usual);
    if is_usual { usual + 1 } else { usual }
}

fn raw_listen(raw: &[raw::Pair], index: usize) -> &str {
    raw.get(index).map(|pair| pair.listen.as_str()).unwrap_or_default()
}

fn pair(index: usize, raw: &raw::Pair, problems: &mut Problems<'_>) -> Option<Pair> {
    let at = |key: &str| format!("pairs[{index}].{key}");
    let listen = problems.take(&at("listen"), address::listen(&raw.listen));
    let upstream = problems.take(&at("upstream"), address::upstream(&raw.upstream));
    let tls = server_tls(&at("tls"), &raw.tls, problems);
    let (listen, (upstream, https)) = listen.zip(upstream)?;
    if upstream == Address::OriginalDestination {
        if matches!(listen, Address::Unix(_)) {
            problems.error(
                &at("upstream"),
                "a Unix socket has no original destination; listen on a TCP address, or write the server's address",
            );
        }
        if tls.is_some() {
            problems.warn(&at("upstream"), "with `original`, clients do not know that they are redirected: tokometer terminates TLS with its own certificate");
        }
    }
    let upstream_tls = client_tls(&at("upstream_tls"), &raw.upstream_tls, https, &upstream, problems);
    Some(Pair {
        name: raw.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| raw.listen.clone()),
        listen,
        upstream,
        tls,
        upstream_tls,
    })
}

fn server_tls(path: &str, raw: &raw::Tls, problems: &mut Problems<'_>) -> Option<ServerTls> {
    let identity = problems.identity(path, ("certificate", &raw.certificate), ("key", &raw.key));
    if raw.client_ca.is_some() && raw.certificate.is_none() && raw.key.is_none() {
        problems.error(
            &format!("{path}.client_ca"),
            format!("client certificates require TLS; set `{path}.certificate` and `{path}.key` too"),
        );
    }
    let (certificate, key) = identity?;
    Some(ServerTls { certificate, key, client_ca: raw.client_ca.as_ref().map(Into::into) })
}

fn client_tls(
    path: &str,
    raw: &raw::UpstreamTls,
    https: bool,
    upstream: &Address,
    problems: &mut Problems<'_>,
) -> Option<ClientTls> {
    let identity = problems.identity(path, ("certificate", &raw.certificate), ("key", &raw.key));
    if !raw.enabled && !https {
        let set = [
            ("ca", raw.ca.is_some()),
            ("server_name", raw.server_name.is_some()),
            ("certificate", identity.is_some()),
            ("insecure", raw.insecure),
        ];
        if let Some((key, _)) = set.iter().find(|(_, set)| *set) {
            problems.error(
                &format!("{path}.{key}"),
                format!("has no effect without TLS towards the server; set `{path}.enabled: true` or write the upstream as https://host:port"),
            );
        }
        return None;
    }
    if raw.server_name.is_none() && !raw.insecure && !matches!(upstream, Address::Tcp { .. }) {
        problems.error(
            &format!("{path}.server_name"),
            "the upstream address has no host name to verify the certificate against; set `server_name`",
        );
    }
    if raw.insecure {
        problems.warn(&format!("{path}.insecure"), "any certificate is accepted from the server");
        if raw.ca.is_some() {
            problems.error(
                &format!("{path}.insecure"),
                format!("`insecure` disables the check against `{path}.ca`; remove one of the two"),
            );
        }
    }
    Some(ClientTls {
        ca: raw.ca.as_ref().map(Into::into),
        server_name: raw.server_name.clone(),
        identity,
        insecure: raw.insecure,
    })
}

/// Follows each listener's upstream from listener to listener, and reports those that lead back to the start.
fn tell_loops(pairs: &[(usize, Pair)], problems: &mut Problems<'_>) {
    let next = |from: &Pair| pairs.iter().position(|(_, to)| address::reaches(&from.upstream, &to.listen));
    for (start, (index, pair)) in pairs.iter().enumerate() {
        let mut at = next(pair);
        for _ in 0..pairs.len() {
            match at {
                Some(place) if place == start => {
                    let message = if next(pair) == Some(start) {
                        "this is tokometer's own listen address, so requests would loop; write the server's address"
                    } else {
                        "this leads through other listeners back to this listen address; write the server's address"
                    };
                    problems.error(&format!("pairs[{index}].upstream"), message);
                    break;
                }
                Some(place) => at = pairs.get(place).and_then(|(_, pair)| next(pair)),
                None => break,
            }
        }
    }
}
