//! "Did you mean": the known word nearest to an unknown one.

/// The candidate with the fewest edits to `word`, if there are few for its length.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (edits(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(edits, candidate)| *edits <= limit && *edits < candidate.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance from `a` to `b`: insertions, deletions, replacements and transpositions (optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut previous = None;
    for (i, x) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut least = (last[j] + usize::from(x != *y)).min(last[j + 1] + 1).min(row[j] + 1);
            if j > 0 && previous == Some(*y) && x == b[j - 1] {
                least = least.min(before_last[j - 1] + 1);
            }
            row.push(least);
        }
        previous = Some(x);
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_transposition_once() {
        let table = [("", "", 0), ("a", "", 1), ("abc", "abc", 0), ("abc", "acb", 1), ("listen", "lsiten", 1)];
        for (a, b, expected) in table {
            assert_eq!(edits(a, b), expected, "{a} {b}");
        }
        assert_eq!(edits("kitten", "sitting"), 3);
    }

    #[test]
    fn nearest_ignores_distant_words() {
        let keys = ["keepalive_secs", "idle_timeout_secs", "unreachable"];
        assert_eq!(nearest("keep_alive_secs", keys), Some("keepalive_secs"));
        assert_eq!(
            nearest("idle_timeout", keys),
            Some("idle_timeout_secs").filter(|_| edits("idle_timeout", "idle_timeout_secs") <= 4)
        );
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("UNREACHABEL", keys), Some("unreachable"));
    }
}
