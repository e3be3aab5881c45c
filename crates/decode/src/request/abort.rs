//! Requests that abort other requests: `/abort_request` of SGLang and LMDeploy, `/abort_requests` of vLLM, and
//! `/v1/responses/ID/cancel`.

use crate::Route;
use crate::scan::{self, Capture, Keys, Pause, Scanner, Shape, Sink};

/// Maximum number of ids that are read from one body. If it has more, the rest is ignored.
const IDS: usize = 16;

/// Maximum length of an id in bytes; longer ids are truncated.
const LONGEST: usize = 64;

/// The requests that a client aborts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// All requests of the server.
    All,
    /// The requests with these ids, or prefixes of ids (SGLang), possibly truncated.
    Ids(Vec<Box<str>>),
}

impl Aborted {
    /// True if the request whose response has this id is aborted. vLLM appends the number of a prompt to the id of a
    /// completion.
    pub fn covers(&self, id: Option<&str>) -> bool {
        match (self, id) {
            (Aborted::All, _) => true,
            (Aborted::Ids(ids), Some(id)) => ids.iter().any(|named| id.starts_with(&**named) || named.starts_with(id)),
            (Aborted::Ids(_), None) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Body,
    Id,
    Ids,
    All,
}

/// `rid`: SGLang 0.5. `session_id`: LMDeploy 0.18, whose responses have it as `id`. `request_ids`: vLLM 0.33.
static BODY: Keys<Place> =
    Keys::new(&[("rid", Place::Id), ("session_id", Place::Id), ("request_ids", Place::Ids), ("abort_all", Place::All)]);

impl scan::Place for Place {
    fn shape(self) -> Shape<Place> {
        match self {
            Place::Body => Shape::Object(&BODY),
            // A word or a number.
            Place::Id => Shape::Number,
            Place::Ids => Shape::Array(Place::Id),
            Place::All => Shape::Mark,
        }
    }
}

/// Decoder for the body of such a request, in bounded memory.
#[derive(Clone, Debug)]
pub(super) struct AbortRequest {
    scanner: Scanner<Place>,
    /// The id in the target. The body then has none, and is usually empty.
    target: Option<Box<str>>,
    found: AbortedIds,
}

#[derive(Clone, Debug, Default)]
struct AbortedIds {
    word: Capture<LONGEST>,
    ids: Vec<Box<str>>,
    all: bool,
    /// The body names requests.
    named: bool,
}

impl Default for AbortRequest {
    fn default() -> Self {
        Self { scanner: Scanner::new(Place::Body), target: None, found: AbortedIds::default() }
    }
}

impl AbortRequest {
    /// Reads the id in the target `/responses/ID/cancel`.
    pub(super) fn target(&mut self, target: &str) {
        self.target = Route::readings(target).find_map(|path| {
            let (_, id) = path.strip_suffix("/cancel")?.rsplit_once("/responses/")?;
            let mut word = Capture::<LONGEST>::default();
            word.push(id.as_bytes());
            word.settle();
            Some(word.text()?.into())
        });
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.scanner.feed(bytes, Pause::Never, &mut self.found);
    }

    /// The aborted requests; `None` if the body is incomplete. A body without an id aborts all requests.
    pub(super) fn aborted(&self) -> Option<Aborted> {
        if let Some(id) = &self.target {
            return Some(Aborted::Ids(vec![id.clone()]));
        }
        let AbortedIds { ids, all, named, .. } = &self.found;
        let whole = self.scanner.is_done();
        whole.then(|| if *all || !named { Aborted::All } else { Aborted::Ids(ids.clone()) })
    }
}

impl AbortedIds {
    fn add(&mut self, id: &str) {
        self.named = true;
        // LMDeploy: -1 is no session. SGLang: every id begins with an empty one.
        match id {
            "-1" => {}
            "" => self.all = true,
            id if self.ids.len() < IDS => self.ids.push(id.into()),
            _ => {}
        }
    }
}

impl Sink<Place> for AbortedIds {
    fn begin(&mut self, place: Place, first: u8) {
        self.all |= place == Place::All && first == b't';
    }

    fn text(&mut self, _: Place, _: bool) {}

    fn wants_word(&mut self, _: Place) -> bool {
        self.word.clear();
        true
    }

    fn word_part(&mut self, _: Place, part: &[u8]) {
        self.word.push(part);
    }

    fn word_end(&mut self, _: Place) {
        let word = self.word;
        if let Ok(id) = std::str::from_utf8(word.bytes()) {
            self.add(id);
        }
    }

    fn number(&mut self, _: Place, written: &[u8]) {
        if let Ok(id) = std::str::from_utf8(written) {
            self.add(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(body: &str) -> Option<Aborted> {
        let results = (0..=body.len()).map(|place| {
            let mut request = AbortRequest::default();
            request.feed(&body.as_bytes()[..place]);
            request.feed(&body.as_bytes()[place..]);
            request.aborted()
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]), "{body}: {results:?}");
        results[0].clone()
    }

    fn ids(ids: &[&str]) -> Option<Aborted> {
        Some(Aborted::Ids(ids.iter().map(|id| (*id).into()).collect()))
    }

    #[test]
    fn ids_of_every_engine_are_read() {
        assert_eq!(aborted(r#"{"rid": "a7", "abort_all": false}"#), ids(&["a7"]));
        assert_eq!(aborted(r#"{"session_id": 12}"#), ids(&["12"]));
        assert_eq!(aborted(r#"{"request_ids": ["cmpl-1-0", "chatcmpl-2"]}"#), ids(&["cmpl-1-0", "chatcmpl-2"]));
        for all in [r#"{"rid": "", "abort_all": true}"#, r#"{"rid": ""}"#, "{}", r#"{"request_ids": []}"#] {
            assert_eq!(aborted(all), Some(Aborted::All), "{all}");
        }
        assert_eq!(aborted(r#"{"rid": "a"#), None);
        let many: Vec<String> = (0..40).map(|id| format!("\"{id}\"")).collect();
        let Some(Aborted::Ids(kept)) = aborted(&format!("{{\"request_ids\": [{}]}}", many.join(","))) else { panic!() };
        assert_eq!(kept.len(), IDS);
    }

    #[test]
    fn id_in_the_target_needs_no_body() {
        let canceled = |target: &str| {
            let mut request = AbortRequest::default();
            request.target(target);
            request.aborted()
        };
        for target in ["/v1/responses/resp_1/cancel", "/a//v1/responses/resp%5F1/cancel/?x=1"] {
            assert_eq!(canceled(target), ids(&["resp_1"]), "{target}");
        }
        assert_eq!(canceled(&format!("/responses/{}/cancel", "é".repeat(40))), ids(&["é".repeat(32).as_str()]));
        assert_eq!(canceled("/abort_request"), None);
    }

    #[test]
    fn id_is_covered_by_its_prefix_and_by_the_id_of_its_prompt() {
        let of = Aborted::Ids(vec!["cmpl-1-0".into(), "a7".into()]);
        assert!(of.covers(Some("cmpl-1")) && of.covers(Some("a7_0")));
        assert!(!of.covers(Some("b")) && !of.covers(None));
        assert!(Aborted::All.covers(None));
    }
}
