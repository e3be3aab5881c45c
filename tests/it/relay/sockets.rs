//! Unix sockets, TLS, multiple listeners, and invalid addresses.

use std::io;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use tokometer_observe::input::{Close, Direction};
use tokometer_proxy::listen;
use tokometer_proxy::listen::{Address, ClientTls, Error, Listener, ServerTls};
use tokometer_proxy::relay::Settings;

use crate::listener::listener_to;

use super::corpus::noise;
use super::peer::Wire;
use super::rig::{Rig, tcp};
use super::watcher::{Mood, Watcher};
use super::{corpus, peer};

#[test]
fn unix_sockets_forward_everything_except_resets() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("server"), folder.path().join("relay"));
    let server = UnixListener::bind(&inside).unwrap();
    let listener = Listener { listen: Address::Unix(outside.clone()), ..listener_to(Address::Unix(inside.clone())) };
    let rig = Rig::with(vec![listener], Settings::default(), Watcher::new(Mood::Calm, true));
    let prepared = |stream: UnixStream| {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let mut played = 0;
    for script in corpus::scripts() {
        if script.name.contains("reset") {
            continue;
        }
        let play = |path: &Path| {
            let accept = || prepared(server.accept().unwrap().0);
            peer::play(&script, || prepared(UnixStream::connect(path).unwrap()), accept)
        };
        assert_eq!(play(&inside), play(&outside), "{}", script.name);
        played += 1;
    }
    let log = rig.watcher.closed(played - 1);
    assert_eq!((log.peer, log.upstream), (None, format!("unix:{}", inside.display())));
    drop(rig);
    assert!(!outside.exists(), "the socket file is left behind");
}

#[test]
fn stale_socket_file_is_replaced_and_a_used_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let at_path = || Listener { listen: Address::Unix(path.clone()), ..listener_to(Address::OriginalDestination) };
    let bound = listen::bind(at_path(), &Settings::default()).unwrap();
    let error = listen::bind(at_path(), &Settings::default()).unwrap_err().to_string();
    assert!(error.contains("unix:") && error.contains("stop the program that uses it"), "{error}");
    drop(bound);
    std::fs::write(&path, "precious").unwrap();
    assert!(listen::bind(at_path(), &Settings::default()).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn port_is_exclusive_to_one_process_unless_both_share_it() {
    let threads = |settings: &Settings, upstream| {
        let bound = listen::bind(listener_to(upstream), settings).unwrap();
        let at = Listener { listen: bound.address.clone(), ..listener_to(upstream) };
        let relay = tokometer_proxy::relay::Relay::new(
            settings.clone(),
            1,
            Watcher::new(Mood::Calm, true) as _,
            tokometer_proxy::relay::Drain::new(),
        );
        (listen::serve(vec![bound], &relay, 3).unwrap(), at)
    };
    let (_server, upstream) = peer::listen();
    let (alone, shared) = (Settings::default(), Settings { port_sharing: true, ..Settings::default() });
    let (_workers, at) = threads(&alone, upstream);
    let error = listen::bind(at, &alone).unwrap_err().to_string();
    assert!(error.contains("in use") && error.contains("`relay.port_sharing`"), "{error}");
    let (_workers, at) = threads(&shared, upstream);
    assert!(listen::bind(at.clone(), &alone).is_err(), "one of them does not share it");
    listen::bind(at, &shared).unwrap();
}

/// The timer of the socket at this local port that is connected to `peer` (proc_net_tcp: 2 is keep-alive).
fn timer(local: u16, peer: u16) -> String {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = format!("0100007F:{local:04X} 0100007F:{peer:04X} 01 ");
    let line =
        table.lines().find_map(|line| line.split_once(&ends)).unwrap_or_else(|| panic!("no {ends} in {table}")).1;
    line.split_whitespace().nth(1).unwrap().split(':').next().unwrap().to_owned()
}

#[test]
fn keep_alive_is_on_for_client_and_loopback_server() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(server);
    let client = peer::dial(rig.address());
    let (upstream, relay) = listener.accept().unwrap();
    // The relay enables keep-alive only after it has connected.
    let ends = [(relay.port(), server.port()), (rig.address().port(), client.local_addr().unwrap().port())];
    for (local, peer) in ends {
        let begun = Instant::now();
        while timer(local, peer) != "02" {
            assert!(begun.elapsed() < crate::WAIT, "no keep-alive at port {local} towards {peer}");
        }
    }
    drop(upstream);
}

#[test]
fn each_listener_connects_to_its_own_server() {
    let servers = [peer::listen(), peer::listen(), peer::listen()];
    let listeners = servers.iter().map(|(_, address)| listener_to(*address)).collect();
    let rig = Rig::with(listeners, Settings::default(), Watcher::new(Mood::Calm, true));
    for (index, (listener, server)) in servers.iter().enumerate() {
        let client = peer::dial(tcp(&rig.addresses[index]));
        let (mut upstream, _) = listener.accept().unwrap();
        upstream.write_all(&[index as u8]).unwrap();
        drop(upstream);
        let mut got = Vec::new();
        (&client).read_to_end(&mut got).unwrap();
        assert_eq!(got, [index as u8]);
        let local = client.local_addr().unwrap();
        drop(client);
        let log = rig.watcher.closed(index);
        assert_eq!((log.listener, log.upstream, log.peer), (index, server.to_string(), Some(local)));
    }
}

#[test]
fn host_name_is_resolved_at_each_connect() {
    let (listener, server) = peer::listen();
    let rig = Rig::to(Address::Tcp { host: "localhost".to_owned(), port: server.port() });
    let mut client = peer::dial(rig.address());
    client.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

#[test]
fn original_destination_without_a_redirect_rule_is_refused() {
    let rig = Rig::to(Address::OriginalDestination);
    let mut client = peer::dial(rig.address());
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    drop(client);
    assert!(response.contains("no REDIRECT rule"), "{response}");
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Refused));
}

#[test]
fn bind_error_names_the_address_and_a_fix() {
    let far = Address::Tcp { host: "192.0.2.1".to_owned(), port: 0 };
    let error =
        listen::bind(Listener { listen: far, ..listener_to(Address::OriginalDestination) }, &Settings::default())
            .unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("cannot listen on 192.0.2.1:0: ") && text.contains("0.0.0.0"), "{text}");
    let original = Listener { listen: Address::OriginalDestination, ..listener_to(Address::OriginalDestination) };
    assert!(matches!(listen::bind(original, &Settings::default()), Err(Error::ListenOnOriginal)));
}

/// A CA and certificates signed by it, as files.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Certificate and key for this name.
    pub(crate) fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let path = |suffix: &str| self.folder.path().join(format!("{name}.{suffix}"));
        std::fs::write(path("pem"), certificate.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("pem"), path("key"))
    }

    pub(crate) fn client(&self, identity: Option<(PathBuf, PathBuf)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.ca()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_auth_cert(chain(&identity), key(&identity)).unwrap(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    pub(crate) fn server(&self, name: &str) -> Arc<ServerConfig> {
        let identity = self.sign(name);
        let config = ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain(&identity), key(&identity))
            .unwrap();
        Arc::new(config)
    }
}

fn chain((certificate, _): &(PathBuf, PathBuf)) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_file(certificate).unwrap()]
}

fn key((_, key): &(PathBuf, PathBuf)) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(key).unwrap()
}

pub(crate) type TlsClient = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn tls_client(config: &Arc<ClientConfig>, stream: TcpStream) -> TlsClient {
    StreamOwned::new(ClientConnection::new(Arc::clone(config), "relay.test".try_into().unwrap()).unwrap(), stream)
}

impl Wire for TlsClient {
    fn finish(&mut self) {
        self.conn.send_close_notify();
        while self.conn.wants_write() && self.conn.write_tls(&mut self.sock).is_ok() {}
        Wire::finish(&mut self.sock);
    }

    fn reset(&mut self) {
        Wire::reset(&mut self.sock);
    }
}

impl Wire for StreamOwned<ServerConnection, TcpStream> {
    fn finish(&mut self) {
        self.conn.send_close_notify();
        while self.conn.wants_write() && self.conn.write_tls(&mut self.sock).is_ok() {}
        Wire::finish(&mut self.sock);
    }

    fn reset(&mut self) {
        Wire::reset(&mut self.sock);
    }
}

fn tls_rig(authority: &Authority, upstream: std::net::SocketAddr, client_ca: bool, insecure: bool) -> Rig {
    let (certificate, key) = authority.sign("relay.test");
    let listener = Listener {
        tls: Some(ServerTls { certificate, key, client_ca: client_ca.then(|| authority.ca()) }),
        upstream_tls: Some(ClientTls {
            ca: (!insecure).then(|| authority.ca()),
            server_name: Some("server.test".to_owned()),
            identity: None,
            insecure,
        }),
        ..listener_to(upstream)
    };
    Rig::with(vec![listener], Settings::default(), Watcher::new(Mood::Calm, true))
}

#[test]
fn tls_on_both_sides_relays_the_plaintext_and_its_endings() {
    let authority = Authority::new();
    let (listener, upstream) = peer::listen();
    let rig = tls_rig(&authority, upstream, false, false);
    let (client, server) = (authority.client(None), authority.server("server.test"));
    let mut index = 0;
    for script in corpus::scripts() {
        // These scripts are skipped, because their resets and closes have different results with TLS than without.
        if script.name.contains("reset")
            || script.name.contains("at once")
            || script.name.contains("dies")
            || script.name.contains("silent")
        {
            continue;
        }
        let direct = peer::play_tcp(&script, upstream, &listener);
        let relayed = peer::play(
            &script,
            || tls_client(&client, peer::dial(rig.address())),
            || {
                let connection = ServerConnection::new(Arc::clone(&server)).unwrap();
                StreamOwned::new(connection, peer::prepare(listener.accept().unwrap().0))
            },
        );
        assert!(direct.0.bytes == relayed.0.bytes, "{}: {direct:?} {relayed:?}", script.name);
        assert!(direct.1.bytes == relayed.1.bytes, "{}: {direct:?} {relayed:?}", script.name);
        let log = rig.watcher.closed(index);
        assert!(log.bytes(Direction::Response).starts_with(&relayed.0.bytes), "{}", script.name);
        index += 1;
    }
    assert!(index > 50);
}

#[test]
fn alpn_prefers_http1_if_the_client_offers_it() {
    let authority = Authority::new();
    let (_listener, upstream) = peer::listen();
    let rig = tls_rig(&authority, upstream, false, true);
    let mut client = tls_client(&authority.client(None), peer::dial(rig.address()));
    client.conn.complete_io(&mut client.sock).unwrap();
    assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[test]
fn http2_only_client_gets_http2_on_both_sides() {
    let authority = Authority::new();
    let (listener, upstream) = peer::listen();
    let rig = tls_rig(&authority, upstream, false, false);
    let mut config = Arc::unwrap_or_clone(authority.client(None));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = tls_client(&Arc::new(config), peer::dial(rig.address()));
    let mut config = Arc::unwrap_or_clone(authority.server("server.test"));
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let server = std::thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut server = StreamOwned::new(connection, peer::prepare(listener.accept().unwrap().0));
        server.conn.complete_io(&mut server.sock).unwrap();
        server.conn.alpn_protocol().map(<[u8]>::to_vec)
    });
    client.conn.complete_io(&mut client.sock).unwrap();
    assert_eq!(client.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(server.join().unwrap().as_deref(), Some(&b"h2"[..]));
}

#[test]
fn client_certificate_is_required_with_a_client_ca() {
    let authority = Authority::new();
    let (listener, upstream) = peer::listen();
    let rig = tls_rig(&authority, upstream, true, true);
    let hello = |identity| -> io::Result<()> {
        let mut client = tls_client(&authority.client(identity), peer::dial(rig.address()));
        client.write_all(b"hello")?;
        let config = authority.server("server.test");
        if rig.relay.stats_of(0).handshake_failures.get() == 0 && rig.relay.stats_of(0).accepted.get() == 1 {
            let mut server =
                StreamOwned::new(ServerConnection::new(config).unwrap(), peer::prepare(listener.accept()?.0));
            server.write_all(b"x")?;
            return client.read_exact(&mut [0; 1]);
        }
        client.read_exact(&mut [0; 1])
    };
    hello(Some(authority.sign("client.test"))).unwrap();
    assert!(hello(None).is_err());
    assert_eq!(rig.relay.stats_of(0).handshake_failures.get(), 1);
}

#[test]
fn server_certificate_for_another_name_means_unreachable() {
    let authority = Authority::new();
    let (listener, upstream) = peer::listen();
    let rig = tls_rig(&authority, upstream, false, false);
    let config = authority.server("other.test");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut server = ServerConnection::new(config).unwrap();
            let mut socket = peer::prepare(listener.accept().unwrap().0);
            assert!(server.complete_io(&mut socket).is_err());
        });
        let mut client = tls_client(&authority.client(None), peer::dial(rig.address()));
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 503 ") && response.contains("certificate"), "{response}");
    });
    assert_eq!(rig.watcher.closed(0).close(), Some(Close::Refused));
}

#[test]
fn renewed_certificates_are_used_without_a_restart() {
    let (old, new) = (Authority::new(), Authority::new());
    let (listener, upstream) = peer::listen();
    let rig = tls_rig(&old, upstream, false, false);
    let (certificate, key) = new.sign("relay.test");
    for (renewed, name) in [(certificate, "relay.test.pem"), (key, "relay.test.key"), (new.ca(), "ca.pem")] {
        std::fs::copy(renewed, old.folder.path().join(name)).unwrap();
    }
    let (client, server) = (new.client(None), new.server("server.test"));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&server)).unwrap();
            let mut stream = StreamOwned::new(connection, peer::prepare(socket.unwrap()));
            if stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                Wire::finish(&mut stream);
            }
        }
    });
    // Retries until the relay uses the new authority's files on both sides.
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let mut client = tls_client(&client, peer::dial(rig.address()));
        let mut response = String::new();
        if client.write_all(b"GET / HTTP/1.1\r\n\r\n").is_ok() {
            client.read_to_string(&mut response).ok();
        }
        if response.starts_with("HTTP/1.1 200 ") {
            break;
        }
        assert!(Instant::now() < until, "{response}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn tls_file_errors_name_the_file_and_a_fix_at_startup() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("relay.test");
    let (_, other_key) = authority.sign("other.test");
    let garbage = authority.folder.path().join("garbage.pem");
    std::fs::write(&garbage, noise(100)).unwrap();
    let missing = authority.folder.path().join("missing.pem");
    let message = |certificate: &Path, key: &Path, client_ca: Option<&Path>| {
        let tls = ServerTls { certificate: certificate.into(), key: key.into(), client_ca: client_ca.map(Into::into) };
        let listener = Listener { tls: Some(tls), ..listener_to(Address::OriginalDestination) };
        let relay = tokometer_proxy::relay::Relay::new(
            Settings::default(),
            1,
            Watcher::new(Mood::Calm, true) as _,
            tokometer_proxy::relay::Drain::new(),
        );
        listen::serve(vec![listen::bind(listener, &Settings::default()).unwrap()], &relay, 1).unwrap_err().to_string()
    };
    for (text, named, fix) in [
        (message(&missing, &key, None), "missing.pem", "check the path"),
        (message(&garbage, &key, None), "garbage.pem", "-----BEGIN CERTIFICATE-----"),
        (message(&certificate, &certificate, None), "the key file", "-----BEGIN PRIVATE KEY-----"),
        (message(&certificate, &other_key, None), "other.test.key", "must belong to the first certificate"),
        (message(&certificate, &key, Some(&missing)), "the client CA file", "check the path"),
    ] {
        assert!(text.contains(named) && text.contains(fix), "{text}");
    }
}

#[test]
fn client_close_without_close_notify_is_an_orderly_end() {
    let authority = Authority::new();
    let (listener, upstream) = peer::listen();
    let rig = tls_rig(&authority, upstream, false, true);
    let config = authority.server("server.test");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let connection = ServerConnection::new(config).unwrap();
            let mut server = StreamOwned::new(connection, peer::prepare(listener.accept().unwrap().0));
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            got
        });
        let mut client = tls_client(&authority.client(None), peer::dial(rig.address()));
        client.write_all(b"hello").unwrap();
        client.flush().unwrap();
        Wire::finish(&mut client.sock);
        assert_eq!(server.join().unwrap(), b"hello");
        // Closing with unread session tickets would make the client send a reset.
        client.read_to_end(&mut Vec::new()).ok();
    });
    assert!(matches!(rig.watcher.closed(0).close(), Some(Close::Finished { .. })));
}
