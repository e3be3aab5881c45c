//! The examples of RFC 7541, appendix C, and inputs that a decoder must reject.

use super::*;

const CAP: usize = 4096;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(&two.iter().collect::<String>(), 16).expect("hex")).collect()
}

fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, Fault> {
    let fields = decoder.decode(block, CAP, &mut usize::MAX.clone())?;
    Ok(fields.iter().map(|field| format!("{}: {}", field.name, String::from_utf8_lossy(field.value))).collect())
}

/// Decodes the blocks of one direction and checks the fields and the table size after each.
fn reads(mut decoder: Decoder, blocks: &[(&str, &[&str], usize)]) {
    for (block, expected, size) in blocks {
        assert_eq!(fields(&mut decoder, &bytes(block)).as_deref(), Ok(expected.map_strings().as_slice()), "{block}");
        assert_eq!(decoder.table.size(), *size, "{block}");
    }
}

trait Strings {
    fn map_strings(&self) -> Vec<String>;
}

impl Strings for &[&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[test]
fn integers_of_c_1() {
    for (hex, prefix, value) in [("0a", 5, 10), ("1f9a0a", 5, 1337), ("2a", 7, 42), ("7f00", 7, 127)] {
        let bytes = bytes(hex);
        let mut rest = bytes.as_slice();
        assert_eq!((integer(&mut rest, prefix), rest), (Ok(value), &[][..]), "{hex}");
    }
}

#[test]
fn unterminated_or_too_large_integers_are_rejected() {
    for hex in ["", "ff", "ff80", "ff8080808001", "ffffffffff7f", "ff8080808080808080808000"] {
        assert_eq!(integer(&mut bytes(hex).as_slice(), 7), Err(Fault::HeaderCompression), "{hex}");
    }
}

#[test]
fn single_fields_of_c_2() {
    let alone = |block, expected: &[&str], size| reads(Decoder::new(), &[(block, expected, size)]);
    alone("400a637573746f6d2d6b65790d637573746f6d2d686561646572", &["custom-key: custom-header"], 55);
    alone("040c2f73616d706c652f70617468", &[":path: /sample/path"], 0);
    alone("100870617373776f726406736563726574", &["password: secret"], 0);
    alone("82", &[":method: GET"], 0);
}

const FIRST: &[&str] = &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"];
const SECOND: &[&str] =
    &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com", "cache-control: no-cache"];
const THIRD: &[&str] = &[
    ":method: GET",
    ":scheme: https",
    ":path: /index.html",
    ":authority: www.example.com",
    "custom-key: custom-value",
];

#[test]
fn requests_of_c_3_and_c_4() {
    reads(
        Decoder::new(),
        &[
            ("828684410f7777772e6578616d706c652e636f6d", FIRST, 57),
            ("828684be58086e6f2d6361636865", SECOND, 110),
            ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", THIRD, 164),
        ],
    );
    reads(
        Decoder::new(),
        &[
            ("828684418cf1e3c2e5f23a6ba0ab90f4ff", FIRST, 57),
            ("828684be5886a8eb10649cbf", SECOND, 110),
            ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", THIRD, 164),
        ],
    );
}

const FOUND: &[&str] = &[
    ":status: 302",
    "cache-control: private",
    "date: Mon, 21 Oct 2013 20:13:21 GMT",
    "location: https://www.example.com",
];
const REDIRECT: &[&str] = &[
    ":status: 307",
    "cache-control: private",
    "date: Mon, 21 Oct 2013 20:13:21 GMT",
    "location: https://www.example.com",
];
const FINE: &[&str] = &[
    ":status: 200",
    "cache-control: private",
    "date: Mon, 21 Oct 2013 20:13:22 GMT",
    "location: https://www.example.com",
    "content-encoding: gzip",
    "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
];

/// The examples use a table of 256 bytes, so that fields are evicted.
fn small() -> Decoder {
    let mut decoder = Decoder::new();
    decoder.table.resize(256);
    decoder
}

#[test]
fn responses_of_c_5_and_c_6() {
    reads(
        small(),
        &[
            (
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54
                 6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
                FOUND,
                222,
            ),
            ("4803333037c1c0bf", REDIRECT, 222),
            (
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153
                 444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
                FINE,
                215,
            ),
        ],
    );
    reads(
        small(),
        &[
            (
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae
                 82ae43d3",
                FOUND,
                222,
            ),
            ("4883640effc1c0bf", REDIRECT, 222),
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960
                 d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                FINE,
                215,
            ),
        ],
    );
}

#[test]
fn field_may_take_its_name_from_the_field_it_evicts() {
    let mut decoder = Decoder::new();
    // The table has room for one field: `a: x`, then `a: y`, whose name refers to the first field.
    let block = [&bytes("3f03")[..], b"\x40\x01a\x01x", b"\x7e\x01y", b"\xbe"].concat();
    assert_eq!(fields(&mut decoder, &block).as_deref(), Ok(&["a: x".into(), "a: y".into(), "a: y".into()][..]));
    assert_eq!(decoder.table.size(), 34);
}

#[test]
fn field_larger_than_the_table_empties_it() {
    let mut decoder = Decoder::new();
    let large = [&bytes("3f21")[..], b"\x40\x01a\x01x", b"\x40\x01b\x3c", &[b'y'; 60]].concat();
    assert_eq!(fields(&mut decoder, &large).map(|fields| fields.len()), Ok(2));
    assert_eq!(decoder.table.size(), 0);
    assert_eq!(fields(&mut decoder, b"\xbe"), Err(Fault::HeaderCompression));
}

#[test]
fn malformed_blocks_are_rejected() {
    for (why, hex) in [
        ("index 0", "80"),
        ("an index beyond both tables", "be"),
        ("a name index beyond both tables", "7e0161"),
        ("a string longer than the block", "4005616263"),
        ("a missing value", "400161"),
        ("Huffman padding of zeros", "4001618100"),
        ("EOS in a string", "40016184ffffffff"),
    ] {
        assert_eq!(fields(&mut Decoder::new(), &bytes(hex)), Err(Fault::HeaderCompression), "{why}");
    }
}

#[test]
fn table_and_block_sizes_are_limited() {
    // 31 + 65505 = 65536, then one more.
    assert!(fields(&mut Decoder::new(), &bytes("3fe1ff03")).is_ok());
    assert_eq!(fields(&mut Decoder::new(), &bytes("3fe2ff03")), Err(Fault::HeaderTableTooLarge));
    // One field of 1000 bytes, four times, then five times.
    let four = [&thousand()[..], &[0xbe; 3]].concat();
    let decoded = |block: &[u8], cap| {
        let mut allowance = 10_000;
        let fields = Decoder::new().decode(block, cap, &mut allowance).unwrap();
        (fields.len(), fields.is_truncated(), 10_000 - allowance)
    };
    assert_eq!(decoded(&four, CAP), (4, false, 3000));
    let five = [&thousand()[..], &[0xbe; 4]].concat();
    assert_eq!(decoded(&five, CAP), (4, true, 3000));
    assert_eq!(decoded(&[0x82; 513], usize::MAX), (512, true, 512 * 10));
}

/// Adds a field of 1000 bytes to the table.
fn thousand() -> Vec<u8> {
    [b"\x40\x01a\x7f\xe8\x06", &[b'x'; 999][..]].concat()
}

/// Fault and number of copied bytes of a block that follows a field of 1000 bytes.
fn copied(block: &[u8], cap: usize, mut allowance: usize) -> (Option<Fault>, usize) {
    let before = allowance;
    let mut decoder = Decoder::new();
    decoder.table.resize(MAX_TABLE);
    decoder.decode(&thousand(), CAP, &mut 0).unwrap();
    let fault = decoder.decode(block, cap, &mut allowance).err();
    (fault, before - allowance)
}

#[test]
fn block_is_abandoned_at_the_field_that_exceeds_the_allowance() {
    let references = vec![0xbe; 250_000];
    assert_eq!(copied(&references, usize::MAX, 4500), (Some(Fault::HeaderExpansion), 4000));
    assert_eq!(copied(&references[..4], usize::MAX, 4000), (None, 4000));
    assert_eq!(copied(&references[..5], usize::MAX, 4999), (Some(Fault::HeaderExpansion), 4000));
}

#[test]
fn fields_over_the_cap_are_not_copied() {
    assert_eq!(copied(&vec![0xbe; 250_000], CAP, 1 << 20), (None, 4000));
    // Later fields that would fit are omitted too.
    assert_eq!(copied(&[&[0xbe; 5][..], &[0x82; 100]].concat(), CAP, 1 << 20), (None, 4000));
}

#[test]
fn names_copied_from_the_table_use_the_allowance() {
    // The name of 1000 bytes, in fields without indexing, never indexed and with indexing, beyond the cap or not.
    let name = [&b"\x40\x7f\xe9\x06"[..], &[b'x'; 1000], b"\x00"].concat();
    for literal in [&b"\x0f\x2f\x00"[..], b"\x1f\x2f\x00", b"\x7e\x00"] {
        for cap in [0, usize::MAX] {
            let block = [&name[..], &literal.repeat(100_000)].concat();
            assert_eq!(copied(&block, cap, 4500), (Some(Fault::HeaderExpansion), 4000), "{literal:x?}");
        }
    }
}

#[test]
fn size_updates_and_tiny_fields_copy_nothing() {
    // Size updates to 0 and 4096, fields with an empty name and value, and their evictions.
    let block = b"\x20\x3f\xe1\x1f\x40\x00\x00\x00\x00\x00".repeat(20_000);
    assert_eq!(copied(&block, CAP, 0), (None, 0));
}

#[test]
fn fields_over_the_cap_still_change_the_table() {
    let mut decoder = Decoder::new();
    let block = [&thousand()[..], b"\x40\x01b\x01y"].concat();
    let fields = decoder.decode(&block, 100, &mut 0).unwrap();
    assert_eq!((fields.len(), fields.is_truncated()), (0, true));
    let fields = decoder.decode(b"\xbe", 100, &mut 2).unwrap();
    assert_eq!(
        fields.iter().map(|field| (field.name.to_owned(), field.value.to_owned())).next(),
        Some(("b".to_owned(), b"y".to_vec()))
    );
}
