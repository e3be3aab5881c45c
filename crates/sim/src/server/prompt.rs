//! The size of a prompt in any of its JSON shapes.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde::de::MapAccess;
use serde::de::SeqAccess;
use serde::de::Visitor;

/// The size of a prompt; the text itself is not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Total bytes of all strings.
    pub(crate) bytes: u64,
    /// Count of numbers: a prompt can be given as token ids.
    numbers: u64,
    /// Number of elements, if it is a list.
    elements: u64,
    /// Whether the elements are separate prompts: strings or lists.
    several: bool,
}

impl Prompt {
    /// Simulated token count: four bytes per token.
    pub(crate) fn tokens(&self) -> u64 {
        (self.bytes.div_ceil(4) + self.numbers).max(1)
    }

    /// Token count of a conversation: adds a few tokens per message and per conversation.
    pub(crate) fn chat_tokens(&self) -> u64 {
        3 + 4 * self.elements + self.bytes.div_ceil(4) + self.numbers
    }

    /// Number of prompts that are generated for separately.
    pub(crate) fn prompts(&self) -> u32 {
        if self.several { self.elements.min(64) as u32 } else { 1 }
    }

    /// One text that is compared with each of the others.
    pub(crate) fn against(self, others: Option<Prompt>) -> Prompt {
        let elements = others.as_ref().map_or(1, |others| u64::from(others.prompts()));
        Prompt { elements, several: true, ..self.join(others) }
    }

    /// The size of an audio prompt.
    pub(crate) fn audio(tokens: u64, seconds: u64) -> Prompt {
        Prompt { numbers: tokens, elements: seconds, several: true, ..Prompt::default() }
    }

    /// Adds another part of the same prompt.
    pub(crate) fn join(mut self, other: Option<Prompt>) -> Prompt {
        let other = other.unwrap_or_default();
        self.bytes += other.bytes;
        self.numbers += other.numbers;
        self
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Prompt, D::Error> {
        deserializer.deserialize_any(Measure)
    }
}

struct Measure;

impl<'de> Visitor<'de> for Measure {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt { bytes: text.len() as u64, ..Prompt::default() })
    }

    fn visit_u64<E>(self, _: u64) -> Result<Prompt, E> {
        Ok(Prompt { numbers: 1, ..Prompt::default() })
    }

    fn visit_i64<E>(self, _: i64) -> Result<Prompt, E> {
        Ok(Prompt::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Prompt, E> {
        Ok(Prompt::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Prompt, E> {
        Ok(Prompt::default())
    }

    fn visit_unit<E>(self) -> Result<Prompt, E> {
        Ok(Prompt::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Prompt, A::Error> {
        let mut all = Prompt::default();
        while let Some(element) = elements.next_element::<Prompt>()? {
            all.bytes += element.bytes;
            all.numbers += element.numbers;
            all.elements += 1;
            all.several |= element.bytes > 0 || element.elements > 0;
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Prompt, A::Error> {
        let mut all = Prompt::default();
        while let Some(key) = members.next_key::<String>()? {
            if matches!(key.as_str(), "content" | "text" | "input") {
                let value = members.next_value::<Prompt>()?;
                all.bytes += value.bytes;
                all.numbers += value.numbers;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(all)
    }
}
