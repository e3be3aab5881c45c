//! The limits on output tokens in a request body.
//!
//! Engines ignore keys that they do not know. So the keys that count depend on the route and the engine, and a limit
//! under another key says nothing about the response.

/// A set of keys with which requests limit the output tokens per choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits(u16);

impl Limits {
    pub(crate) const NONE: Limits = Limits(0);
    pub(crate) const ALL: Limits = Limits(u16::MAX);
    /// `n_predict`
    pub(crate) const N_PREDICT: Limits = Limits(1);
    /// `max_completion_tokens`, of chats
    pub(crate) const MAX_COMPLETION_TOKENS: Limits = Limits(1 << 1);
    /// `options.num_predict`
    pub(crate) const NUM_PREDICT: Limits = Limits(1 << 2);
    /// `sampling_params.max_new_tokens`
    pub(crate) const MAX_NEW_TOKENS: Limits = Limits(1 << 3);
    /// `sampling_params.max_tokens`
    pub(crate) const SAMPLING_MAX_TOKENS: Limits = Limits(1 << 4);
    /// `parameters.max_new_tokens`
    pub(crate) const PARAMETERS: Limits = Limits(1 << 5);
    /// `max_tokens`
    pub(crate) const MAX_TOKENS: Limits = Limits(1 << 6);
    /// `max_output_tokens`
    pub(crate) const MAX_OUTPUT_TOKENS: Limits = Limits(1 << 7);
    /// A limit of one of several requests in the body
    pub(crate) const INSTANCE: Limits = Limits(1 << 8);
    /// `max_completion_tokens`, of completions
    pub(crate) const OF_COMPLETIONS: Limits = Limits(1 << 9);

    /// The keys in order of precedence, which differs between engines only if a request has several.
    const KEYS: [Limits; 9] = [
        Limits::N_PREDICT,
        Limits::MAX_COMPLETION_TOKENS.and(Limits::OF_COMPLETIONS),
        Limits::NUM_PREDICT,
        Limits::MAX_NEW_TOKENS,
        Limits::SAMPLING_MAX_TOKENS,
        Limits::PARAMETERS,
        Limits::MAX_TOKENS,
        Limits::MAX_OUTPUT_TOKENS,
        Limits::INSTANCE,
    ];

    pub(crate) const fn and(self, more: Limits) -> Limits {
        Limits(self.0 | more.0)
    }

    pub(crate) const fn both(self, other: Limits) -> Limits {
        Limits(self.0 & other.0)
    }

    const fn overlaps(self, other: Limits) -> bool {
        self.0 & other.0 != 0
    }
}

/// The maximum number of output tokens per choice that a request allows, as evidence about the time that its response
/// may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// The largest limit under any key that the engine may read; 0 without a limit.
    pub largest: u64,
    /// The engine certainly applies a limit, and no limit that it applies is larger. Otherwise, the response may be as
    /// long as without a limit.
    pub certain: bool,
}

impl OutputLimit {
    /// The maximum number of output tokens, if `usual` is that of a request without a limit.
    pub fn tokens(self, usual: u64) -> u64 {
        self.largest.max(if self.certain { 0 } else { usual })
    }
}

/// The values of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Values {
    /// The last value, which most engines use. `None` if it is not a whole number below 2^32.
    last: Option<u32>,
    /// The largest value; [`u32::MAX`] if a value is not readable.
    largest: u32,
}

/// The limits found in a body.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FoundLimits {
    values: [Values; Limits::KEYS.len()],
    /// The keys with a number.
    numbers: Limits,
    /// The keys with null.
    nulls: Limits,
    /// The keys with a negative number, which means no limit.
    open: Limits,
    is_odd: bool,
}

impl FoundLimits {
    /// A value of this key begins with this byte.
    pub(super) fn begin(&mut self, key: Limits, first: u8) {
        let Some(values) = self.values(key) else { return };
        values.last = None;
        match first {
            b'n' => self.nulls = self.nulls.and(key),
            b'-' => self.open = self.open.and(key),
            b'0'..=b'9' => {}
            // pydantic accepts numbers in strings.
            _ => values.largest = u32::MAX,
        }
    }

    /// The number at this key, as written.
    pub(super) fn number(&mut self, key: Limits, written: &[u8]) {
        if written.first() == Some(&b'-') {
            return;
        }
        let whole = std::str::from_utf8(written).ok().and_then(|text| text.parse().ok());
        self.whole(key, whole);
    }

    /// A whole number at this key, or `None` for another number.
    pub(super) fn whole(&mut self, key: Limits, number: Option<u64>) {
        self.numbers = self.numbers.and(key);
        if let Some(values) = self.values(key) {
            let last = number.and_then(|number| u32::try_from(number).ok());
            *values = Values { last, largest: values.largest.max(last.unwrap_or(u32::MAX)) };
        }
    }

    fn values(&mut self, key: Limits) -> Option<&mut Values> {
        let at = Limits::KEYS.iter().position(|known| known.overlaps(key))?;
        self.values.get_mut(at)
    }

    /// A key that differs from a known key in case only, which Go's JSON decoder ignores (Ollama).
    pub(super) fn odd_key(&mut self) {
        self.is_odd = true;
    }

    /// The limit that the engine applies, which reads these keys.
    pub(super) fn applied(&self, read: Limits) -> Option<u64> {
        self.values_of(read).find_map(|values| values.last).map(u64::from)
    }

    /// The limits as evidence about an engine that reads the keys `certain`, and possibly also the keys `possible`.
    pub(super) fn evidence(&self, certain: Limits, possible: Limits) -> OutputLimit {
        let read = certain.and(possible);
        let is_open = self.open.and(self.numbers.both(self.nulls)).overlaps(read);
        let largest = self.values_of(read).map(|values| values.largest).max().map(|largest| match largest {
            u32::MAX => u64::MAX,
            largest => largest.into(),
        });
        OutputLimit {
            largest: if self.is_odd { u64::MAX } else { largest.unwrap_or(0) },
            certain: self.numbers.overlaps(certain) && !is_open && !self.is_odd,
        }
    }

    fn values_of(&self, keys: Limits) -> impl Iterator<Item = &Values> {
        let all = Limits::KEYS.iter().zip(&self.values);
        all.filter(move |(key, _)| key.overlaps(keys)).map(|(_, values)| values)
    }
}
