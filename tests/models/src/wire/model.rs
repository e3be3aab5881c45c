//! A naive parser for the complete bytes of one direction: slow and simple, for comparison with the real parser.

use tokometer_wire::websocket::Extensions;
use tokometer_wire::{Fault, Limits};

use crate::wire::traffic::{Outcome, Reported, ask, feed, fields, reply};

/// Why the model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes end between two messages, or are empty.
    Clean,
    /// The bytes end within a message.
    Cut,
    Bad(Fault),
    /// The parser accepts more than the model.
    Odd,
}

/// The result of parsing one direction.
#[derive(Debug)]
pub struct Reading {
    pub reported: Vec<Reported>,
    pub stop: Stop,
    /// The methods of the requests with complete headers.
    pub methods: Vec<String>,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    reported: Vec<Reported>,
    /// The fault that malformed bytes of this direction cause.
    malformed: Fault,
}

enum Length {
    Exactly(usize),
    Chunked,
    UntilClose,
}

fn token(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+')
        || matches!(byte, b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

impl<'a> Cursor<'a> {
    fn bad<T>(&self) -> Result<T, Stop> {
        Err(Stop::Bad(self.malformed))
    }

    fn split(&self, result: httparse::Result<usize>) -> Result<(), Stop> {
        match result {
            Ok(httparse::Status::Complete(_)) => Ok(()),
            _ => Err(Stop::Odd),
        }
    }

    fn head(&mut self) -> Result<&'a [u8], Stop> {
        let end = (1..=self.bytes.len())
            .find(|end| self.bytes[..*end].ends_with(b"\n\n") || self.bytes[..*end].ends_with(b"\n\r\n"));
        let (head, rest) = self.bytes.split_at(end.ok_or(Stop::Cut)?);
        self.bytes = rest;
        Ok(head)
    }

    /// A line that ends with CRLF.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let end = self.bytes.iter().position(|byte| b"\r\n".contains(byte)).ok_or(Stop::Cut)?;
        match &self.bytes[end..] {
            [b'\r'] => Err(Stop::Cut),
            [b'\r', b'\n', rest @ ..] => {
                let line = &self.bytes[..end];
                self.bytes = rest;
                Ok(line)
            }
            _ => Err(Stop::Odd),
        }
    }

    /// Takes `length` bytes of a body, or as many as are available.
    fn data(&mut self, length: usize, reported: fn(Vec<u8>) -> Reported) -> Result<(), Stop> {
        let (data, rest) = self.bytes.split_at(length.min(self.bytes.len()));
        self.bytes = rest;
        if !data.is_empty() {
            match self.reported.last_mut() {
                Some(Reported::RequestBody(body) | Reported::ResponseBody(body)) => body.extend_from_slice(data),
                _ => self.reported.push(reported(data.to_owned())),
            }
        }
        if data.len() < length { Err(Stop::Cut) } else { Ok(()) }
    }

    fn body(&mut self, length: Length, reported: fn(Vec<u8>) -> Reported) -> Result<(), Stop> {
        match length {
            Length::Exactly(length) => self.data(length, reported),
            Length::UntilClose => self.data(usize::MAX, reported),
            Length::Chunked => loop {
                let line = self.line()?;
                let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                let (digits, after) = line.split_at(digits);
                let blanks = after.iter().take_while(|byte| b" \t".contains(byte)).count();
                let after = &after[blanks..];
                if digits.is_empty() || !(after.is_empty() || after[0] == b';') {
                    return self.bad();
                }
                let digits = std::str::from_utf8(digits).unwrap();
                let Ok(size) = u64::from_str_radix(digits, 16) else { return self.bad() };
                if size == 0 {
                    while !self.line()?.is_empty() {}
                    return Ok(());
                }
                self.data(size as usize, reported)?;
                if !self.line_end()? {
                    return if self.bytes[0] == b'\n' { Err(Stop::Odd) } else { self.bad() };
                }
            },
        }
    }

    /// Takes a CRLF; returns false if other bytes follow.
    fn line_end(&mut self) -> Result<bool, Stop> {
        match self.bytes {
            [] | [b'\r'] => Err(Stop::Cut),
            [b'\r', b'\n', rest @ ..] => {
                self.bytes = rest;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The body length from the header fields; `None` if they contain none.
    fn length(&self, headers: &[httparse::Header<'_>]) -> Result<Option<Length>, Stop> {
        let values = |name: &str| -> Vec<String> {
            let of_name = headers.iter().filter(|header| header.name.to_lowercase() == name);
            let lists = of_name.map(|header| String::from_utf8_lossy(header.value).to_ascii_lowercase());
            lists
                .flat_map(|list| {
                    list.split(',').map(|item| item.trim_matches([' ', '\t']).to_owned()).collect::<Vec<_>>()
                })
                .collect()
        };
        let mut codings = values("transfer-encoding");
        let lengths = values("content-length");
        let coded = !codings.is_empty();
        codings.retain(|coding| !coding.is_empty());
        if coded && !lengths.is_empty() {
            return Err(Stop::Odd);
        }
        if coded {
            return match codings.iter().position(|coding| coding == "chunked") {
                Some(place) if place + 1 == codings.len() => Ok(Some(Length::Chunked)),
                Some(_) => Err(Stop::Odd),
                None => Ok(Some(Length::UntilClose)),
            };
        }
        let Some(first) = lengths.first() else { return Ok(None) };
        if lengths.iter().any(|length| length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit())) {
            return self.bad();
        }
        let Ok(length) = first.parse::<u64>() else { return self.bad() };
        if lengths.iter().any(|other| other.parse() != Ok(length)) {
            return self.bad();
        }
        Ok(Some(Length::Exactly(length as usize)))
    }

    fn request(&mut self, first: bool, methods: &mut Vec<String>) -> Result<(), Stop> {
        let Some(start) = self.bytes.iter().position(|byte| !b"\r\n".contains(byte)) else { return Err(Stop::Clean) };
        self.bytes = &self.bytes[start..];
        let method = self.bytes.iter().position(|byte| !token(byte)).ok_or(Stop::Cut)?;
        if method == 0 || self.bytes[method] != b' ' {
            return Err(match self.bytes {
                [0x15 | 0x16] if first => Stop::Cut,
                [0x15 | 0x16, 3, ..] if first => Stop::Bad(Fault::Tls),
                _ if first => Stop::Bad(Fault::NotHttp),
                _ => Stop::Bad(Fault::MalformedRequest),
            });
        }
        // This may be the HTTP/2 preface, which is not a request. The complete headers are needed to decide.
        let may_be_preface = first && self.bytes.starts_with(b"PRI ");
        if !may_be_preface {
            self.reported.push(Reported::RequestBegin);
        }
        let head = self.head()?;
        if may_be_preface && head == b"PRI * HTTP/2.0\r\n\r\n" {
            return Err(Stop::Bad(Fault::Http2));
        }
        let mut headers = [httparse::EMPTY_HEADER; 512];
        let mut request = httparse::Request::new(&mut headers);
        self.split(request.parse(head))?;
        if may_be_preface {
            self.reported.push(Reported::RequestBegin);
        }
        let (method, minor) = (request.method.unwrap().to_owned(), request.version.unwrap());
        let target = request.path.unwrap().to_owned();
        let reported = Reported::RequestHead { method: method.clone(), target, minor, fields: fields(request.headers) };
        self.reported.push(reported);
        let length = self.length(request.headers)?;
        let coded = request.headers.iter().any(|header| header.name.eq_ignore_ascii_case("transfer-encoding"));
        if matches!(length, Some(Length::UntilClose)) || coded && minor == 0 {
            return self.bad();
        }
        let upgrade = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("upgrade"));
        let waits =
            method == "GET" && upgrade.is_some_and(|to| to.value.trim_ascii().eq_ignore_ascii_case(b"websocket"));
        methods.push(method);
        self.body(length.unwrap_or(Length::Exactly(0)), Reported::RequestBody)?;
        self.reported.push(Reported::RequestEnd);
        if waits && !self.bytes.is_empty() { Err(Stop::Odd) } else { Ok(()) }
    }

    /// Parses one response. `idle`: the client has sent its last request completely.
    fn response(&mut self, methods: &mut impl ExactSizeIterator<Item = String>, idle: bool) -> Result<(), Stop> {
        if self.bytes.is_empty() {
            return Err(Stop::Clean);
        }
        let method = methods.next().ok_or(Stop::Odd)?;
        let may_upgrade = idle && methods.len() == 0;
        loop {
            match self.bytes {
                [0x15 | 0x16] => return Err(Stop::Cut),
                [0x15 | 0x16, 3, ..] => return Err(Stop::Bad(Fault::Tls)),
                bytes if bytes.iter().zip(b"HTTP/1.").any(|(byte, expected)| byte != expected) => return self.bad(),
                _ => {}
            }
            let head = self.head()?;
            let mut headers = [httparse::EMPTY_HEADER; 512];
            let mut response = httparse::Response::new(&mut headers);
            self.split(response.parse(head))?;
            let (status, minor) = (response.code.unwrap(), response.version.unwrap());
            let reported = Reported::ResponseHead { status, minor, fields: fields(response.headers) };
            if status < 100 {
                return self.bad();
            } else if status == 101 || method == "CONNECT" && status / 100 == 2 {
                let upgrade = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("upgrade"));
                let upgrade = upgrade.filter(|_| status == 101 && may_upgrade).map(|header| header.value.trim_ascii());
                if upgrade == Some(b"h2c") {
                    self.reported.push(Reported::Interim(status));
                    return Err(Stop::Bad(Fault::Http2));
                }
                self.reported.push(reported);
                if upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket")) {
                    return Err(Stop::Bad(Fault::WebSocket(Extensions::default())));
                }
                return Err(Stop::Bad(Fault::Upgraded));
            } else if status < 200 {
                self.reported.push(Reported::Interim(status));
                continue;
            }
            let length = if method == "HEAD" || status == 204 || status == 304 {
                Length::Exactly(0)
            } else {
                self.length(response.headers)?.unwrap_or(Length::UntilClose)
            };
            self.reported.push(reported);
            self.body(length, Reported::ResponseBody)?;
            self.reported.push(Reported::ResponseEnd);
            return Ok(());
        }
    }
}

/// Parses all bytes of a client.
pub fn requests(bytes: &[u8]) -> Reading {
    let mut cursor = Cursor { bytes, reported: Vec::new(), malformed: Fault::MalformedRequest };
    let mut methods = Vec::new();
    let mut first = true;
    loop {
        if let Err(stop) = cursor.request(first, &mut methods) {
            return Reading { reported: cursor.reported, stop, methods };
        }
        first = false;
    }
}

/// Parses all bytes of a server in response to requests with these methods. `whole`: the client has sent the last
/// request completely.
pub fn responses(bytes: &[u8], methods: &[String], whole: bool) -> Reading {
    let mut cursor = Cursor { bytes, reported: Vec::new(), malformed: Fault::MalformedResponse };
    let mut asked = methods.iter().cloned();
    loop {
        if let Err(stop) = cursor.response(&mut asked, whole) {
            return Reading { reported: cursor.reported, stop, methods: methods.to_owned() };
        }
    }
}

/// Checks that `calls` begin with those of the model, whose last body may be incomplete.
fn assert_begins(calls: &[Reported], model: &[Reported]) {
    let Some((last, before)) = model.split_last() else { return };
    assert!(calls.len() >= model.len() && calls[..before.len()] == *before, "{calls:?}, model: {model:?}");
    match (&calls[before.len()], last) {
        (Reported::RequestBody(all), Reported::RequestBody(some))
        | (Reported::ResponseBody(all), Reported::ResponseBody(some)) => assert!(all.starts_with(some)),
        (call, last) => assert_eq!(call, last),
    }
}

/// Checks that the parser and the model make the same calls and stop at the same place.
pub fn agree(requests: &[u8], responses: &[u8]) -> Outcome {
    let limits = Limits { head_bytes: usize::MAX };
    let asked = self::requests(requests);
    let steps = [ask(requests), reply(responses)];
    let outcome = feed(limits, &steps);
    if asked.stop == Stop::Odd {
        assert_begins(&outcome.of(true), &asked.reported);
        return outcome;
    }
    assert_eq!(outcome.of(true), asked.reported);
    let fault = |stop: Stop| match stop {
        Stop::Bad(fault) => Some(fault),
        Stop::Clean | Stop::Cut | Stop::Odd => None,
    };
    let asking = feed(limits, &steps[..1]);
    if asked.stop != Stop::Cut {
        assert_eq!(asking.fault, fault(asked.stop));
    }
    if asking.fault.is_some() {
        return outcome;
    }
    // A request that has begun counts as sent, although its method is not known yet.
    let count = |what: Reported| asked.reported.iter().filter(|reported| **reported == what).count();
    let (begun, whole) = (count(Reported::RequestBegin), count(Reported::RequestBegin) == count(Reported::RequestEnd));
    let mut methods = asked.methods;
    methods.resize(begun, String::new());
    let response_complete = self::responses(responses, &methods, whole);
    assert_begins(&outcome.of(false), &response_complete.reported);
    if !matches!(response_complete.stop, Stop::Cut | Stop::Odd) {
        assert_eq!(outcome.of(false), response_complete.reported);
        // The extensions are not compared, because other tests check them.
        let plain = |fault| match fault {
            Fault::WebSocket(_) => Fault::WebSocket(Extensions::default()),
            other => other,
        };
        assert_eq!(outcome.fault.map(plain), fault(response_complete.stop));
    }
    outcome
}
