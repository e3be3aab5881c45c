//! Reads the selectors of an expression and the functions around each. PromQL itself is validated by promtool.

/// A selector, such as `name{label="value"}[5m]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Name of the series.
    pub name: String,
    /// Label, operator, value.
    pub matchers: Vec<(String, String, String)>,
    /// The range, such as `5m`.
    pub window: Option<String>,
    /// The time of the modifier `@`.
    pub at: Option<String>,
    /// Functions and aggregations around the selector, outermost first.
    pub inside: Vec<String>,
}

impl Selector {
    /// True with the matcher `label=~"value"`.
    pub fn has(&self, label: &str, value: &str) -> bool {
        self.matchers.iter().any(|(name, operator, wanted)| name == label && operator == "=~" && wanted == value)
    }
}

/// Selectors of an expression, and the labels that it groups or joins by.
///
/// # Errors
/// The unbalanced delimiter, or the matcher without an operator.
pub fn read(expr: &str) -> Result<(Vec<Selector>, Vec<String>), String> {
    let mut reader = Reader { rest: expr, ..Reader::default() };
    while let Some(c) = reader.rest.chars().next() {
        reader.step(c)?;
    }
    if reader.open.is_empty() { Ok((reader.selectors, reader.labels)) } else { Err(format!("unclosed (: {expr}")) }
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const WORDS: [&str; 7] = ["and", "or", "unless", "bool", "offset", "NaN", "Inf"];

#[derive(Default)]
struct Reader<'a> {
    rest: &'a str,
    open: Vec<String>,
    /// The function or aggregation whose parenthesis comes next, possibly after `by (...)`.
    pending: String,
    selectors: Vec<Selector>,
    labels: Vec<String>,
}

impl<'a> Reader<'a> {
    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or("");
    }

    /// Skips a delimited part, and returns its text. The remaining input must start with the opening delimiter.
    fn closed_by(&mut self, mark: char) -> Result<&'a str, String> {
        let end =
            self.rest.get(1..).and_then(|rest| rest.find(mark)).ok_or(format!("missing {mark}: {}", self.rest))?;
        let inside = self.rest.get(1..=end).unwrap_or("");
        self.skip(end + 2);
        Ok(inside)
    }

    fn step(&mut self, c: char) -> Result<(), String> {
        match c {
            '(' => {
                self.open.push(std::mem::take(&mut self.pending));
                self.skip(1);
            }
            ')' => {
                self.open.pop().ok_or(format!("unmatched ): {}", self.rest))?;
                self.skip(1);
            }
            '"' => drop(self.closed_by('"')?),
            '[' => drop(self.closed_by(']')?),
            c if c.is_ascii_digit() || c == '$' => {
                let end =
                    self.rest.get(1..).unwrap_or("").find(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c)));
                self.skip(end.map_or(self.rest.len(), |end| end + 1));
            }
            c if c.is_ascii_alphabetic() || c == '_' => self.word()?,
            c => self.skip(c.len_utf8()),
        }
        Ok(())
    }

    fn word(&mut self) -> Result<(), String> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c))).unwrap_or(self.rest.len());
        let word = self.rest.get(..end).unwrap_or("").to_owned();
        self.skip(end);
        self.rest = self.rest.trim_start();
        if GROUPING.contains(&word.as_str()) {
            if self.rest.starts_with('(') {
                let inside = self.closed_by(')')?;
                self.labels
                    .extend(inside.split(',').map(|label| label.trim().to_owned()).filter(|label| !label.is_empty()));
            }
            return Ok(());
        }
        let is_grouped = ["by ", "by(", "without "].iter().any(|clause| self.rest.starts_with(clause));
        if WORDS.contains(&word.as_str()) {
            return Ok(());
        }
        if self.rest.starts_with('(') || is_grouped {
            self.pending = word;
            return Ok(());
        }
        let mut matchers = Vec::new();
        if self.rest.starts_with('{') {
            for matcher in self.closed_by('}')?.split("\",").filter(|matcher| !matcher.is_empty()) {
                let (label, value) = matcher.split_once('"').ok_or(format!("{word}: invalid matcher {matcher}"))?;
                let name: String = label.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                let operator = label.get(name.len()..).unwrap_or("").to_owned();
                if !["=", "!=", "=~", "!~"].contains(&operator.as_str()) {
                    return Err(format!("{word}: {matcher} has no operator"));
                }
                matchers.push((name, operator, value.trim_end_matches('"').to_owned()));
            }
        }
        let window = if self.rest.starts_with('[') { Some(self.closed_by(']')?.to_owned()) } else { None };
        self.rest = self.rest.trim_start();
        let at = self.rest.strip_prefix("@ ").map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
        let inside = self.open.iter().filter(|name| !name.is_empty()).cloned().collect();
        self.selectors.push(Selector { name: word, matchers, window, at, inside });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_found_with_their_enclosing_functions() {
        let (found, labels) =
            read("sum by (le, a) (rate(x_bucket{a=\"1,2\",b=~\"$b\"}[5m]))\nor on () max_over_time((y > 0.5)[1h:1m])")
                .unwrap();
        assert_eq!(labels, ["le", "a"]);
        let names: Vec<&str> = found.iter().map(|selector| selector.name.as_str()).collect();
        assert_eq!(names, ["x_bucket", "y"]);
        let of = |label: &str, operator: &str, value: &str| (label.to_owned(), operator.to_owned(), value.to_owned());
        assert_eq!(found[0].matchers, [of("a", "=", "1,2"), of("b", "=~", "$b")]);
        assert_eq!((found[0].window.as_deref(), found[0].inside.join(" ")), (Some("5m"), "sum rate".to_owned()));
        assert_eq!((found[1].window.as_deref(), found[1].inside.join(" ")), (None, "max_over_time".to_owned()));
        let (found, _) = read("sum(rate(a[5m] @ 0)) + b").unwrap();
        assert_eq!(found.iter().map(|selector| selector.at.as_deref()).collect::<Vec<_>>(), [Some("0"), None]);
        let (found, _) = read("label_replace(a * $x, \"b c\", \"$1\", \"\", \"(.*)\") + 3").unwrap();
        assert_eq!(found.iter().map(|selector| selector.name.as_str()).collect::<Vec<_>>(), ["a"]);
        for broken in ["sum(a", "a)", "a{b=\"c\"", "a{b}", "rate(a[5m)"] {
            assert!(read(broken).is_err(), "{broken}");
        }
    }
}
