//! The filter that the kernel applies to packets: classic BPF (Linux, `Documentation/networking/filter.rst`).
//!
//! The filter runs on packets without link layer header and VLAN tags, which the kernel has removed.

use libc::{
    ARPHRD_LOOPBACK, BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K,
    BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, BPF_W, PACKET_OUTGOING, SKF_AD_HATYPE, SKF_AD_OFF, SKF_AD_PKTTYPE, sock_filter,
};

use crate::segment::ip::{EXTENSIONS, TCP};

/// Return values: pass the whole packet, or drop it.
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

/// A filter that passes TCP over IPv4 and IPv6 from and to these ports. On a loopback interface each packet is captured
/// twice, when sent and when received; the filter passes only the second copy.
///
/// It also passes packets that only the parser can classify: later fragments, and IPv6 packets with extension headers.
pub(super) fn ports(ports: &[u16]) -> Vec<sock_filter> {
    let v4 = v4(ports);
    let mut program = vec![
        load(BPF_W | BPF_ABS, ancillary(SKF_AD_HATYPE)),
        unless(ARPHRD_LOOPBACK.into(), 3),
        load(BPF_W | BPF_ABS, ancillary(SKF_AD_PKTTYPE)),
        unless(PACKET_OUTGOING.into(), 1),
        ret(DROP),
        // The IP version.
        load(BPF_B | BPF_ABS, 0),
        instruction(BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xf0),
        when(0x40, 1),
        // Skips the IPv4 part, which can be longer than the range of a conditional jump.
        instruction(BPF_JMP | BPF_JA, 0, 0, v4.len() as u32),
    ];
    program.extend(v4);
    program.extend([when(0x60, 1), ret(DROP)]);
    program.extend(v6(ports));
    program
}

fn v4(ports: &[u16]) -> Vec<sock_filter> {
    let mut program = vec![
        load(BPF_B | BPF_ABS, 9),
        when(TCP.into(), 1),
        ret(DROP),
        load(BPF_H | BPF_ABS, 6),
        // Passes later fragments: their offset is not 0, and they contain no ports.
        instruction(BPF_JMP | BPF_JSET | BPF_K, 0, 1, 0x1fff),
        ret(PASS),
        // X = length of the IP header.
        instruction(BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0),
    ];
    for at in [0, 2] {
        program.push(load(BPF_H | BPF_IND, at));
        program.extend(any_of(ports.iter().map(|port| (*port).into())));
    }
    program.push(ret(DROP));
    program
}

fn v6(ports: &[u16]) -> Vec<sock_filter> {
    let mut program = vec![load(BPF_B | BPF_ABS, 6)];
    program.extend(any_of(EXTENSIONS.map(u32::from)));
    program.extend([when(TCP.into(), 1), ret(DROP)]);
    for at in [40, 42] {
        program.push(load(BPF_H | BPF_ABS, at));
        program.extend(any_of(ports.iter().map(|port| (*port).into())));
    }
    program.push(ret(DROP));
    program
}

/// Passes the packet if the loaded value is one of these.
fn any_of(values: impl IntoIterator<Item = u32>) -> impl Iterator<Item = sock_filter> {
    values.into_iter().flat_map(|value| [unless(value, 1), ret(PASS)])
}

fn load(what: u32, at: u32) -> sock_filter {
    instruction(BPF_LD | what, 0, 0, at)
}

/// Skips this many instructions if the loaded value is `value`.
fn when(value: u32, skip: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JEQ | BPF_K, skip, 0, value)
}

/// Skips this many instructions if the loaded value is not `value`.
fn unless(value: u32, skip: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JEQ | BPF_K, 0, skip, value)
}

fn ret(len: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, 0, 0, len)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    // All codes fit in 16 bits.
    sock_filter { code: code as u16, jt, jf, k }
}

/// The offset at which a value outside of the packet is loaded (`linux/filter.h`: negative offsets).
fn ancillary(value: libc::c_int) -> u32 {
    (SKF_AD_OFF + value) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with its metadata from the kernel.
    struct Seen<'a> {
        bytes: &'a [u8],
        interface: u16,
        kind: u8,
    }

    /// Runs a filter as the kernel does: true if the packet passes.
    fn passes(program: &[sock_filter], packet: &Seen<'_>) -> bool {
        let (mut at, mut a, mut x) = (0, 0u32, 0usize);
        let byte = |at: usize| packet.bytes.get(at).map(|byte| u32::from(*byte));
        let half = |at: usize| Some(byte(at)? << 8 | byte(at + 1)?);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let (code, place) = (u32::from(code), k as usize);
            at += 1;
            let loaded = match code {
                _ if code == BPF_LD | BPF_W | BPF_ABS && k == ancillary(SKF_AD_HATYPE) => Some(packet.interface.into()),
                _ if code == BPF_LD | BPF_W | BPF_ABS && k == ancillary(SKF_AD_PKTTYPE) => Some(packet.kind.into()),
                _ if code == BPF_LD | BPF_B | BPF_ABS => byte(place),
                _ if code == BPF_LD | BPF_H | BPF_ABS => half(place),
                _ if code == BPF_LD | BPF_H | BPF_IND => half(x + place),
                _ if code == BPF_ALU | BPF_AND | BPF_K => Some(a & k),
                _ => Some(a),
            };
            // A load beyond the end of the packet drops the packet.
            let Some(loaded) = loaded else { return false };
            a = loaded;
            match code {
                _ if code == BPF_LDX | BPF_B | BPF_MSH => x = (packet.bytes[place] & 0xf) as usize * 4,
                _ if code == BPF_JMP | BPF_JA => at += place,
                _ if code == BPF_JMP | BPF_JEQ | BPF_K => at += usize::from(if a == k { jt } else { jf }),
                _ if code == BPF_JMP | BPF_JSET | BPF_K => at += usize::from(if a & k != 0 { jt } else { jf }),
                _ if code == BPF_RET | BPF_K => return k == PASS,
                _ => {}
            }
        }
    }

    fn v4_packet(protocol: u8, options: usize, fragment: u16, from: u16, to: u16) -> Vec<u8> {
        let mut packet = vec![0; 20 + options];
        packet[0] = 0x40 | ((20 + options) / 4) as u8;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()));
        packet.extend([0; 16]);
        packet
    }

    fn v6_packet(next: u8, from: u16, to: u16) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[6] = next;
        packet.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()));
        packet.extend([0; 16]);
        packet
    }

    const ETHERNET: u16 = libc::ARPHRD_ETHER;
    const HOST: u8 = libc::PACKET_HOST;

    fn passes_on_ethernet(program: &[sock_filter], bytes: &[u8]) -> bool {
        let is_passed = [HOST, PACKET_OUTGOING].map(|kind| passes(program, &Seen { bytes, interface: ETHERNET, kind }));
        assert_eq!(is_passed[0], is_passed[1], "both directions");
        is_passed[0]
    }

    #[test]
    fn tcp_of_the_ports_passes() {
        // The maximum number of ports in the settings: jumps must reach over all of them.
        let many: Vec<u16> = (0..64).map(|n| 8000 + n).collect();
        for servers in [&[8000][..], &[1, 8000, 9], &many] {
            let program = ports(servers);
            assert!(program.len() <= libc::BPF_MAXINSNS as usize);
            for server in servers {
                for (from, to) in [(*server, 40_000), (40_000, *server), (*server, *server)] {
                    for options in [0, 4, 40] {
                        assert!(passes_on_ethernet(&program, &v4_packet(TCP, options, 0x4000, from, to)));
                    }
                    assert!(passes_on_ethernet(&program, &v6_packet(TCP, from, to)));
                }
            }
            assert!(!passes_on_ethernet(&program, &v4_packet(TCP, 0, 0, 40_000, 80)));
            assert!(!passes_on_ethernet(&program, &v6_packet(TCP, 40_000, 80)));
        }
    }

    #[test]
    fn other_packets_are_dropped() {
        let program = ports(&[8000]);
        for packet in [
            v4_packet(17, 0, 0, 8000, 8000),
            v6_packet(17, 8000, 8000),
            vec![0; 60],
            [vec![0x50], vec![0; 60]].concat(),
            Vec::new(),
            v4_packet(TCP, 0, 0, 8000, 1)[..20].to_vec(),
        ] {
            assert!(!passes_on_ethernet(&program, &packet), "{packet:?}");
        }
    }

    #[test]
    fn fragments_and_extension_headers_are_left_to_the_parser() {
        let program = ports(&[8000]);
        assert!(passes_on_ethernet(&program, &v4_packet(TCP, 0, 0x2001, 1, 2)));
        for extension in EXTENSIONS {
            assert!(passes_on_ethernet(&program, &v6_packet(extension, 1, 2)));
        }
    }

    #[test]
    fn loopback_packets_pass_once() {
        let program = ports(&[8000]);
        let bytes = &v4_packet(TCP, 0, 0, 8000, 40_000)[..];
        let on_loopback = |kind| passes(&program, &Seen { bytes, interface: ARPHRD_LOOPBACK, kind });
        assert!(on_loopback(HOST) && !on_loopback(PACKET_OUTGOING));
    }
}
