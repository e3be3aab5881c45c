//! Failed connects to the server are counted by reason, in proxy mode and in rewrite mode.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use rustls::{ServerConnection, StreamOwned};
use tokometer_proxy::listen::{Address, ClientTls, Listener, Probe, Reached};
use tokometer_proxy::relay::{Relay, Settings, Unreached};

use crate::listener::{listener_to, reserved};
use crate::rewrite::{Proxy, chat, usage};

use super::peer;
use super::rig::Rig;
use super::sockets::Authority;
use super::watcher::{Mood, Watcher};

/// Sends a request, checks that the response is a 503, and returns the counted reason.
fn counted(client_of: SocketAddr, relay: &Relay) -> Unreached {
    let mut client = peer::dial(client_of);
    client.write_all(&chat(b"{}")).unwrap();
    let mut response = [0; 12];
    client.read_exact(&mut response).unwrap();
    assert_eq!(&response, b"HTTP/1.1 503");
    let counts = || Unreached::ALL.into_iter().filter(|why| relay.stats_of(0).unreached(*why).get() > 0);
    // In rewrite mode, the failure is counted only after the response.
    while counts().next().is_none() {
        thread::yield_now();
    }
    let [why] = counts().collect::<Vec<_>>()[..] else { panic!("{:?}", counts().collect::<Vec<_>>()) };
    assert_eq!(relay.stats_of(0).unreached(why).get(), 1);
    why
}

fn with_tls(upstream: SocketAddr) -> Listener {
    let tls = ClientTls { ca: None, server_name: Some("server.test".to_owned()), identity: None, insecure: true };
    Listener { upstream_tls: Some(tls), ..listener_to(upstream) }
}

/// Accepts connections and closes them.
fn closes_each(server: TcpListener) {
    thread::spawn(move || server.incoming().for_each(drop));
}

#[test]
fn failed_connect_is_counted_by_its_reason() {
    let (plain, address) = peer::listen();
    closes_each(plain);
    // No host can have this name, so the resolution fails without a DNS server.
    let unresolved = Address::Tcp { host: "a\0b".to_owned(), port: 1 };
    for (listener, expected) in [
        (listener_to(reserved()), Unreached::Refused),
        (listener_to(Address::Unix("/no such folder/socket".into())), Unreached::Refused),
        (listener_to(unresolved), Unreached::NameResolution),
        (with_tls(address), Unreached::Tls),
        // This path is longer than the path of a socket can be.
        (listener_to(Address::Unix("/".repeat(200).into())), Unreached::Other),
    ] {
        let upstream = listener.upstream.clone();
        let rig = Rig::with(vec![listener.clone()], Settings::default(), Watcher::new(Mood::Calm, true));
        assert_eq!(counted(rig.address(), &rig.relay), expected, "{upstream}");
        let rewrite = Some(std::sync::Arc::new(usage()) as _);
        let proxy = Proxy::with(Listener { rewrite, ..listener });
        assert_eq!(counted(proxy.address, &proxy.handles().relay), expected, "{upstream} in rewrite mode");
    }
}

#[test]
fn check_of_a_tls_server_completes_the_handshake_or_names_the_fault() {
    let authority = Authority::new();
    let probe = |upstream: SocketAddr, name: &str| {
        let tls =
            ClientTls { ca: Some(authority.ca()), server_name: Some(name.to_owned()), identity: None, insecure: false };
        Probe::new(&Listener { upstream_tls: Some(tls), ..listener_to(upstream) }).unwrap()
    };
    // What a server finds on a connection: a complete handshake and an orderly close, or an error.
    let (server, address) = peer::listen();
    let config = authority.server("server.test");
    let found = thread::spawn(move || {
        let results = (0..2).map(|_| {
            let mut socket = peer::prepare(server.accept().unwrap().0);
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            tls.complete_io(&mut socket).and_then(|_| StreamOwned::new(tls, socket).read(&mut [0; 1])).ok()
        });
        results.collect::<Vec<_>>()
    });
    assert!(matches!(probe(address, "server.test").reach(), Reached::Accepts));
    let Reached::Fails(error) = probe(address, "other.test").reach() else {
        panic!("the certificate is for another name")
    };
    assert_eq!(Unreached::of(&error), Unreached::Tls, "{error}");
    assert_eq!(found.join().unwrap(), [Some(0), None]);

    let (plain, address) = peer::listen();
    closes_each(plain);
    let Reached::Fails(error) = probe(address, "server.test").reach() else { panic!("the server does not use TLS") };
    assert_eq!(Unreached::of(&error), Unreached::Tls, "{error}");
    assert!(matches!(probe(reserved(), "server.test").reach(), Reached::Refuses(_)));
}
