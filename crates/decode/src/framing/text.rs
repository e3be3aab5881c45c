//! A body that is the plain text of the response, split at any byte.

/// The signature of a WebVTT file (W3C WebVTT, section 4.1), present even if no word follows.
const SIGNATURE: &[u8] = b"WEBVTT";

/// Detects whether a plain-text body has any words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlainText {
    /// Bytes of the signature matched at the start of the body so far.
    signature: u8,
    begun: bool,
    spoke: bool,
}

impl PlainText {
    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.spoke {
            return;
        }
        let mut rest = bytes;
        while let (false, Some((byte, after))) = (self.begun, rest.split_first()) {
            if SIGNATURE.get(usize::from(self.signature)) != Some(byte) {
                self.begun = true;
                self.spoke = self.is_cut();
            } else {
                self.signature += 1;
                rest = after;
            }
        }
        self.spoke |= rest.iter().any(|byte| !byte.is_ascii_whitespace());
    }

    /// True if the body had a word in it. Call it at the end of the body.
    pub(crate) fn spoke(&self) -> bool {
        self.spoke || self.is_cut()
    }

    /// An incomplete signature counts as a word.
    fn is_cut(&self) -> bool {
        (1..SIGNATURE.len()).contains(&usize::from(self.signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_detected_at_every_split() {
        for (body, spoke) in [
            ("", false),
            ("\n \r\n", false),
            ("Hello.", true),
            ("\nWEBVTT", true),
            ("WEB", true),
            ("WEBER", true),
            ("WEBVTT\n\n", false),
            ("WEBVTT\n\n00:00.000 --> 00:01.000\nHello.\n", true),
            ("1\n00:00:00,000 --> 00:00:01,000\nHello.\n", true),
        ] {
            for place in 0..=body.len() {
                let mut text = PlainText::default();
                let (first, second) = body.split_at(place);
                text.feed(first.as_bytes());
                text.feed(second.as_bytes());
                assert_eq!(text.spoke(), spoke, "{body:?} split at {place}");
            }
        }
    }
}
