//! Whether the streams of a server show its steps.

use crate::chain::Part;
use crate::expected::Median;
use crate::types::Readable;

/// Tokens after which the counts are halved, so that the verdict follows changes.
const SPAN: u64 = 16_384;
/// Tokens below which there is no verdict.
const ENOUGH: u64 = 64;

/// Counts from which the verdict follows.
#[derive(Debug)]
pub(crate) struct Structure {
    sizes: Median<31>,
    events: u64,
    /// Tokens of ended streams as reported, and those that their events did not show.
    reported: u64,
    missing: u64,
    tokens: u64,
    /// Events of more than one token. Gaps before events of one token, and before those of more.
    several: u64,
    gap_of_one: Median<31>,
    gap_of_several: Median<31>,
    /// Single steps that a stream missed although it went on afterwards.
    skipped: u64,
    /// Bursts, and those that completed a step long after the rest of it.
    bursts: u64,
    apart: u64,
    opened: u64,
    several_choices: u64,
}

impl Structure {
    pub(crate) fn new() -> Self {
        Structure {
            sizes: Median::new(),
            events: 0,
            reported: 0,
            missing: 0,
            tokens: 0,
            several: 0,
            gap_of_one: Median::new(),
            gap_of_several: Median::new(),
            skipped: 0,
            bursts: 0,
            apart: 0,
            opened: 0,
            several_choices: 0,
        }
    }

    pub(crate) fn opened(&mut self, choices: u16) {
        self.opened += 1;
        self.several_choices += u64::from(choices > 1);
    }

    /// A stream ended after `counted` tokens; the server reports `reported`, or 0.
    pub(crate) fn ended(&mut self, counted: u32, reported: u32) {
        self.reported += u64::from(reported);
        self.missing += u64::from(reported.saturating_sub(counted));
    }

    /// A burst; `skipped` steps were missed by its streams since their previous tokens.
    pub(crate) fn burst(&mut self, parts: &[Part], apart: bool, skipped: u64) {
        for part in parts.iter().filter(|part| !part.first) {
            self.sizes.push(u64::from(part.tokens));
            self.events += 1;
            let gap = part.at.saturating_sub(part.before);
            if part.tokens > 1 {
                self.several += 1;
                self.gap_of_several.push(gap);
            } else {
                self.gap_of_one.push(gap);
            }
            self.tokens += u64::from(part.tokens);
        }
        self.skipped += skipped;
        self.bursts += 1;
        self.apart += u64::from(apart);
        if self.tokens > SPAN {
            let counts = [
                &mut self.events,
                &mut self.reported,
                &mut self.missing,
                &mut self.tokens,
                &mut self.skipped,
                &mut self.bursts,
                &mut self.apart,
                &mut self.several,
                &mut self.opened,
                &mut self.several_choices,
            ];
            counts.into_iter().for_each(|count| *count /= 2);
        }
    }

    /// Tokens per event that the server usually sends; 1 if it varies.
    pub(crate) fn interval(&self) -> u32 {
        let size = self.sizes.get().unwrap_or(1);
        if self.sizes.is_usual() { size as u32 } else { 1 }
    }

    pub(crate) fn verdict(&self) -> Readable {
        if self.several_choices * 2 > self.opened {
            return Readable::Choices;
        }
        if self.tokens < ENOUGH {
            return Readable::TooFew;
        }
        if self.missing * 50 > self.reported {
            return Readable::NoCounts;
        }
        let regular = self.sizes.is_usual();
        if let (Some(one), Some(several)) = (self.gap_of_one.get(), self.gap_of_several.get())
            && !regular
            && self.several * 4 > self.events
            && several * 2 < one * 3
        {
            // Merged tokens of k steps take k times as long; those of one step do not.
            return Readable::Speculative;
        }
        // A front end that is late merges tokens; a second engine does not.
        let apart = self.apart * 5 > self.bursts && self.several * 20 < self.events;
        if apart || self.skipped * 5 > self.tokens {
            return Readable::SeveralEngines;
        }
        Readable::Yes { interval: self.interval() }
    }
}
