//! Capture files, written independently of the code that reads them.

use std::io::Write;
use std::time::Duration;

use crate::file::{Error, Packets, read};
use crate::{Link, OwnedPacket};

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Little,
    Big,
}

const ORDERS: [Order; 2] = [Order::Little, Order::Big];

impl Order {
    fn bytes<const N: usize>(self, number: u64) -> [u8; N] {
        let all = number.to_be_bytes();
        let mut bytes: [u8; N] = all[8 - N..].try_into().unwrap();
        if self == Order::Little {
            bytes.reverse();
        }
        bytes
    }

    fn u16(self, number: u16) -> [u8; 2] {
        self.bytes(number.into())
    }

    fn u32(self, number: u32) -> [u8; 4] {
        self.bytes(number.into())
    }
}

/// A packet with these bytes, captured at this time.
fn packet(bytes: &[u8], at: Duration) -> OwnedPacket {
    OwnedPacket { link: Link::Ethernet, bytes: bytes.to_vec(), original_len: bytes.len() + 3, at, outgoing: None }
}

fn packets() -> Vec<OwnedPacket> {
    vec![
        packet(b"one", Duration::new(1_790_000_000, 123_456_000)),
        packet(b"", Duration::ZERO),
        packet(b"three!!", Duration::new(4_000_000_000, 999_999_000)),
    ]
}

fn pcap(order: Order, nanos: bool, link: u32, packets: &[OwnedPacket]) -> Vec<u8> {
    let mut file = order.u32(if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
    file.extend([order.u16(2), order.u16(4)].concat());
    file.extend([order.u32(0), order.u32(0), order.u32(65_535), order.u32(link)].concat());
    for packet in packets {
        file.extend(order.u32(packet.at.as_secs() as u32));
        file.extend(order.u32(if nanos { packet.at.subsec_nanos() } else { packet.at.subsec_micros() }));
        file.extend([order.u32(packet.bytes.len() as u32), order.u32(packet.original_len as u32)].concat());
        file.extend(&packet.bytes);
    }
    file
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let (body, mut block) = (padded(body), order.u32(kind).to_vec());
    let len = order.u32(body.len() as u32 + 12);
    block.extend(len);
    block.extend(body);
    block.extend(len);
    block
}

fn option(order: Order, code: u16, value: &[u8]) -> Vec<u8> {
    [&order.u16(code)[..], &order.u16(value.len() as u16), &padded(value)].concat()
}

fn section(order: Order) -> Vec<u8> {
    let body = [&order.u32(0x1a2b_3c4d)[..], &order.u16(1), &order.u16(0), &[0xff; 8], &option(order, 4, b"test")];
    block(order, 0x0a0d_0d0a, &body.concat())
}

fn interface(order: Order, link: u16, options: &[u8]) -> Vec<u8> {
    block(order, 1, &[&order.u16(link)[..], &order.u16(0), &order.u32(0), options].concat())
}

fn enhanced(order: Order, interface: u32, ticks: u64, packet: &OwnedPacket, options: &[u8]) -> Vec<u8> {
    let numbers =
        [interface, (ticks >> 32) as u32, ticks as u32, packet.bytes.len() as u32, packet.original_len as u32];
    let numbers = numbers.map(|number| order.u32(number)).concat();
    block(order, 6, &[&numbers[..], &padded(&packet.bytes), options].concat())
}

fn all(file: &[u8]) -> Result<Vec<OwnedPacket>, Error> {
    Packets::new(file)?.collect()
}

fn error(file: &[u8]) -> String {
    all(file).unwrap_err().to_string()
}

#[test]
fn pcap_files_are_read_in_both_orders_and_resolutions() {
    for order in ORDERS {
        for nanos in [false, true] {
            assert_eq!(all(&pcap(order, nanos, 1, &packets())).unwrap(), packets(), "{order:?} {nanos}");
        }
    }
    let precise = packet(b"a", Duration::new(5, 123_456_789));
    assert_eq!(all(&pcap(Order::Big, true, 1, std::slice::from_ref(&precise))).unwrap(), [precise]);
}

#[test]
fn link_types_are_mapped() {
    let links = [
        (0, Link::Null),
        (1, Link::Ethernet),
        (101, Link::RawIp),
        (108, Link::Null),
        (113, Link::Cooked),
        (228, Link::RawIp),
        (276, Link::Cooked2),
    ];
    for (number, link) in links {
        let one = [packet(b"a", Duration::ZERO)];
        // The upper bits of the field have another meaning.
        assert_eq!(all(&pcap(Order::Little, false, number | 0x2400_0000, &one)).unwrap()[0].link, link);
        let file =
            [section(Order::Big), interface(Order::Big, number as u16, b""), enhanced(Order::Big, 0, 0, &one[0], b"")];
        assert_eq!(all(&file.concat()).unwrap()[0].link, link);
    }
    let message = error(&pcap(Order::Little, false, 147, &[]));
    assert!(message.starts_with("byte 20: link type 147 is not supported"), "{message}");
}

#[test]
fn pcapng_files_are_read_in_both_orders_and_all_resolutions() {
    let option = |order, resolution: u8| option(order, 9, &[resolution]);
    for order in ORDERS {
        for (options, per_second) in
            [(vec![], 1_000_000_u64), (option(order, 9), 1_000_000_000), (option(order, 0x80 | 20), 1 << 20)]
        {
            let mut file = [section(order), interface(order, 1, &options)].concat();
            for packet in packets() {
                let ticks = u128::from(per_second) * packet.at.as_nanos();
                file.extend(enhanced(order, 0, (ticks / 1_000_000_000) as u64, &packet, b""));
                file.extend(block(order, 5, b"statistics"));
            }
            let read = all(&file).unwrap();
            assert_eq!(read.len(), 3);
            for (read, written) in read.iter().zip(packets()) {
                assert!(written.at.abs_diff(read.at) < Duration::from_micros(1), "{read:?} {per_second}");
                assert_eq!(OwnedPacket { at: written.at, ..read.clone() }, written);
            }
        }
    }
}

#[test]
fn pcapng_options_show_direction_and_time_offset() {
    for order in ORDERS {
        let offset = option(order, 14, &order.bytes::<8>(100));
        let mut file = [section(order), interface(order, 1, &offset)].concat();
        for flags in 0..3 {
            let flags =
                [option(order, 1, b"a comment"), option(order, 2, &order.u32(flags)), option(order, 0, b"")].concat();
            file.extend(enhanced(order, 0, 7_000_000, &packet(b"abc", Duration::ZERO), &flags));
        }
        let read = all(&file).unwrap();
        assert_eq!(read.iter().map(|packet| packet.outgoing).collect::<Vec<_>>(), [None, Some(false), Some(true)]);
        assert_eq!(read[0].at, Duration::from_secs(107));
    }
}

#[test]
fn pcapng_sections_have_their_own_order_and_interfaces() {
    let packet = packet(b"abc", Duration::ZERO);
    let part = |order, links: [u16; 2]| {
        [
            section(order),
            interface(order, links[0], b""),
            interface(order, links[1], b""),
            enhanced(order, 1, 0, &packet, b""),
        ]
        .concat()
    };
    let file = [part(Order::Big, [1, 113]), part(Order::Little, [1, 276])].concat();
    assert_eq!(all(&file).unwrap().iter().map(|packet| packet.link).collect::<Vec<_>>(), [Link::Cooked, Link::Cooked2]);
    let obsolete = [&[0, 0, 0xff, 0xff][..], &[0; 8], &Order::Big.u32(3), &Order::Big.u32(3), b"abc\0"].concat();
    let file = [section(Order::Big), interface(Order::Big, 1, b""), block(Order::Big, 2, &obsolete)].concat();
    assert_eq!(all(&file).unwrap()[0].bytes, b"abc");
}

#[test]
fn packets_before_the_end_of_a_truncated_file_are_read() {
    let order = Order::Little;
    let mut next_generation = [section(order), interface(order, 1, b"")].concat();
    let head = next_generation.len();
    packets().iter().for_each(|packet| next_generation.extend(enhanced(order, 0, 0, packet, b"")));
    for (file, head, record) in [(pcap(order, false, 1, &packets()), 24, 16), (next_generation, head, 32)] {
        let ends: Vec<usize> = packets()
            .iter()
            .scan(head, |end, packet| {
                let len = packet.bytes.len();
                *end += record + if record == 16 { len } else { len.next_multiple_of(4) };
                Some(*end)
            })
            .collect();
        assert_eq!(ends.last(), Some(&file.len()));
        for len in head..file.len() {
            let read: Vec<_> = Packets::new(&file[..len]).unwrap().collect();
            let whole = ends.iter().filter(|end| **end <= len).count();
            assert!(read[..whole].iter().all(Result::is_ok), "{len}");
            let at_boundary = len == head || ends.contains(&len);
            match read.get(whole) {
                None => assert!(at_boundary, "{len}"),
                Some(Err(Error::Truncated { offset })) => assert_eq!((*offset, at_boundary), (len as u64, false)),
                Some(other) => panic!("{len}: {other:?}"),
            }
        }
        for len in 0..head {
            assert!(all(&file[..len]).is_err() || len >= 24, "{len}");
        }
    }
}

#[test]
fn errors_name_the_position() {
    let order = Order::Little;
    assert_eq!(error(b""), "byte 0: neither a pcap nor a pcapng file");
    assert_eq!(error(b"GET / HTTP/1.1"), "byte 0: neither a pcap nor a pcapng file");
    let mut file = pcap(order, false, 1, &packets());
    file[24 + 8..24 + 12].copy_from_slice(&order.u32(u32::MAX));
    assert_eq!(error(&file), "byte 40: the length of a packet is not plausible");
    let mut file = pcap(order, false, 1, &packets());
    file[24 + 4..24 + 8].copy_from_slice(&order.u32(1_000_000));
    assert_eq!(error(&file), "byte 24: the time of a packet is not valid");
    let start = section(order);
    let at = start.len();
    let one = enhanced(order, 0, 0, &packets()[0], b"");
    assert_eq!(error(&[&start[..], &one].concat()), format!("byte {at}: a packet of an unknown interface"));
    let simple = block(order, 3, &[4, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(error(&[&start[..], &simple].concat()), format!("byte {at}: packets without a time"));
    let mut wrong = block(order, 99, b"abcd");
    let len = wrong.len();
    wrong[len - 4] = 1;
    assert_eq!(error(&[&start[..], &wrong].concat()), format!("byte {at}: the two lengths of a block differ"));
    let unknown = [&start[..], &interface(order, 147, b""), &one].concat();
    assert!(error(&unknown).contains("link type 147"), "{}", error(&unknown));
}

#[test]
fn no_packets_follow_an_error() {
    let mut file = pcap(Order::Little, false, 1, &packets());
    file.extend([0; 5]);
    let mut read = Packets::new(&file[..]).unwrap();
    assert_eq!(read.by_ref().filter(Result::is_ok).count(), 3);
    assert!(read.next().is_none());
}

#[test]
fn files_are_opened_by_path() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&pcap(Order::Little, false, 1, &packets())).unwrap();
    assert_eq!(read(file.path()).unwrap().map(Result::unwrap).collect::<Vec<_>>(), packets());
    let error = read(std::path::Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(error.starts_with("byte 0: No such file"), "{error}");
}
