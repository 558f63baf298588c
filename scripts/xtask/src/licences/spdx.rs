//! Licence expressions as Cargo manifests have them: SPDX 2 expressions (annex D of that
//! specification), and the older form with `/` between alternatives.
//!
//! `AND` binds closer than `OR`, `WITH` closest; `/` is read as an `OR` that binds least.

use std::fmt;

/// A licence expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// One licence, with its exception if it has one: `Apache-2.0 WITH LLVM-exception`.
    Licence(String),
    /// All of these apply.
    All(Vec<Expression>),
    /// Any one of these may be chosen.
    Any(Vec<Expression>),
}

impl Expression {
    /// Whether a choice exists in which every applying licence is `allowed`. `X+` (that version or
    /// a later one) is met where `X` is, as the version may be chosen.
    pub(crate) fn is_met_by(&self, allowed: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Expression::Licence(name) => {
                allowed(name) || name.strip_suffix('+').is_some_and(allowed)
            }
            Expression::All(parts) => parts.iter().all(|part| part.is_met_by(allowed)),
            Expression::Any(parts) => parts.iter().any(|part| part.is_met_by(allowed)),
        }
    }
}

/// Why a text is no licence expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParseError {
    /// A licence or an opening parenthesis was expected; this stood there instead.
    ExpectedLicence(String),
    /// The text goes on after a whole expression.
    ExpectedOperator(String),
    /// A parenthesis is not closed.
    Unclosed,
    /// A character that no licence name has.
    BadCharacter(char),
    /// More parentheses within each other than any real expression has.
    TooDeep,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::ExpectedLicence(found) => write!(f, "a licence should stand at {found}"),
            ParseError::ExpectedOperator(found) => {
                write!(f, "AND, OR or the end should stand at {found}")
            }
            ParseError::Unclosed => write!(f, "a parenthesis is not closed"),
            ParseError::BadCharacter(c) => write!(f, "no licence name has a {c:?}"),
            ParseError::TooDeep => write!(f, "more than {DEPTH_MAX} nested parentheses"),
        }
    }
}

impl std::error::Error for ParseError {}

const DEPTH_MAX: usize = 16;

/// Reads an expression.
pub(crate) fn parse(text: &str) -> Result<Expression, ParseError> {
    let tokens = tokens(text)?;
    let mut parser = Parser {
        tokens: &tokens,
        next: 0,
        depth: 0,
    };
    let expression = parser.slashes()?;
    match parser.peek() {
        Token::End => Ok(expression),
        other => Err(ParseError::ExpectedOperator(other.to_string())),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    And,
    Or,
    With,
    Slash,
    Open,
    Close,
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(name) => write!(f, "`{name}`"),
            Token::And => write!(f, "AND"),
            Token::Or => write!(f, "OR"),
            Token::With => write!(f, "WITH"),
            Token::Slash => write!(f, "`/`"),
            Token::Open => write!(f, "`(`"),
            Token::Close => write!(f, "`)`"),
            Token::End => write!(f, "the end"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, ParseError> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '(' => tokens.push(Token::Open),
            ')' => tokens.push(Token::Close),
            '/' => tokens.push(Token::Slash),
            c if c.is_ascii_whitespace() => {}
            c if is_of_a_name(c) => {
                let mut name = String::from(c);
                while let Some(c) = chars.next_if(|&c| is_of_a_name(c)) {
                    name.push(c);
                }
                tokens.push(match name.as_str() {
                    "AND" => Token::And,
                    "OR" => Token::Or,
                    "WITH" => Token::With,
                    _ => Token::Name(name),
                });
            }
            c => return Err(ParseError::BadCharacter(c)),
        }
    }
    Ok(tokens)
}

/// Letters, digits and punctuation of licence names, of `LicenseRef-` names, and the `+`.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '+')
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).unwrap_or(&Token::End)
    }

    fn take(&mut self, token: &Token) -> bool {
        let is_there = self.peek() == token && *token != Token::End;
        self.next += usize::from(is_there);
        is_there
    }

    fn slashes(&mut self) -> Result<Expression, ParseError> {
        self.chain(&Token::Slash, Expression::Any, Parser::ors)
    }

    fn ors(&mut self) -> Result<Expression, ParseError> {
        self.chain(&Token::Or, Expression::Any, Parser::ands)
    }

    fn ands(&mut self) -> Result<Expression, ParseError> {
        self.chain(&Token::And, Expression::All, Parser::one)
    }

    /// One or more operands with `operator` between them.
    fn chain(
        &mut self,
        operator: &Token,
        join: fn(Vec<Expression>) -> Expression,
        operand: fn(&mut Self) -> Result<Expression, ParseError>,
    ) -> Result<Expression, ParseError> {
        let first = operand(self)?;
        if self.peek() != operator {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take(operator) {
            parts.push(operand(self)?);
        }
        Ok(join(parts))
    }

    fn one(&mut self) -> Result<Expression, ParseError> {
        if self.take(&Token::Open) {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(ParseError::TooDeep);
            }
            let inner = self.slashes()?;
            self.depth -= 1;
            return if self.take(&Token::Close) {
                Ok(inner)
            } else {
                Err(ParseError::Unclosed)
            };
        }
        let mut licence = self.name()?;
        if self.take(&Token::With) {
            licence = format!("{licence} WITH {}", self.name()?);
        }
        Ok(Expression::Licence(licence))
    }

    fn name(&mut self) -> Result<String, ParseError> {
        let Token::Name(name) = self.peek() else {
            return Err(ParseError::ExpectedLicence(self.peek().to_string()));
        };
        let name = name.clone();
        self.next += 1;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn licence(name: &str) -> Expression {
        Expression::Licence(name.to_owned())
    }

    #[test]
    fn a_single_licence_stands_alone() {
        assert_eq!(parse("BSD-3-Clause"), Ok(licence("BSD-3-Clause")));
    }

    #[test]
    fn and_binds_closer_than_or() {
        let expected = Expression::Any(vec![
            licence("MIT"),
            Expression::All(vec![licence("ISC"), licence("Zlib")]),
        ]);
        assert_eq!(parse("MIT OR ISC AND Zlib"), Ok(expected));
    }

    #[test]
    fn parentheses_bind_closest() {
        let expected = Expression::All(vec![
            Expression::Any(vec![licence("MIT"), licence("ISC")]),
            licence("Zlib"),
        ]);
        assert_eq!(parse("(MIT OR ISC) AND Zlib"), Ok(expected));
    }

    #[test]
    fn an_exception_belongs_to_its_licence() {
        let expected = Expression::Any(vec![
            licence("Apache-2.0 WITH LLVM-exception"),
            licence("MIT"),
        ]);
        assert_eq!(parse("Apache-2.0 WITH LLVM-exception OR MIT"), Ok(expected));
    }

    #[test]
    fn a_slash_separates_alternatives_and_binds_least() {
        let any = Expression::Any(vec![licence("MIT"), licence("Apache-2.0")]);
        assert_eq!(parse("MIT/Apache-2.0"), Ok(any.clone()));
        assert_eq!(parse("MIT / Apache-2.0"), Ok(any));
        let expected = Expression::Any(vec![
            licence("MIT"),
            Expression::All(vec![licence("ISC"), licence("Zlib")]),
        ]);
        assert_eq!(parse("MIT/ISC AND Zlib"), Ok(expected));
    }

    #[test]
    fn a_choice_is_met_by_one_and_a_conjunction_only_by_all() {
        let allowed = |name: &str| name == "MIT" || name == "ISC";
        for (text, met) in [
            ("MIT", true),
            ("GPL-2.0-only", false),
            ("GPL-2.0-only OR MIT", true),
            ("GPL-2.0-only AND MIT", false),
            ("(GPL-2.0-only OR ISC) AND MIT", true),
            ("GPL-2.0-only/MIT", true),
            ("MIT WITH Some-exception", false),
            ("ISC+", true),
            ("GPL-2.0+", false),
        ] {
            assert_eq!(parse(text).unwrap().is_met_by(&allowed), met, "{text}");
        }
    }

    #[test]
    fn broken_expressions_say_where() {
        assert_eq!(
            parse(""),
            Err(ParseError::ExpectedLicence("the end".to_owned()))
        );
        assert_eq!(
            parse("MIT OR"),
            Err(ParseError::ExpectedLicence("the end".to_owned()))
        );
        assert_eq!(
            parse("AND MIT"),
            Err(ParseError::ExpectedLicence("AND".to_owned()))
        );
        assert_eq!(
            parse("MIT ISC"),
            Err(ParseError::ExpectedOperator("`ISC`".to_owned()))
        );
        assert_eq!(parse("(MIT OR ISC"), Err(ParseError::Unclosed));
        assert_eq!(
            parse("MIT)"),
            Err(ParseError::ExpectedOperator("`)`".to_owned()))
        );
        assert_eq!(parse("MIT, ISC"), Err(ParseError::BadCharacter(',')));
        assert_eq!(
            parse("MIT WITH"),
            Err(ParseError::ExpectedLicence("the end".to_owned()))
        );
        assert_eq!(parse(&"(".repeat(1000)), Err(ParseError::TooDeep));
    }

    #[test]
    fn lower_case_words_are_names_and_no_operators() {
        assert_eq!(
            parse("MIT or ISC"),
            Err(ParseError::ExpectedOperator("`or`".to_owned()))
        );
    }
}
