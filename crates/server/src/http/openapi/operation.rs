//! The description of one operation: its schemas come from the types that its handler reads and writes.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ErrorCode;
use crate::http::strict;

/// Makes the schema of one type; those of the types in it are kept by the generator.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The description of an operation.
#[derive(Debug)]
pub(crate) struct OperationDoc {
    pub(crate) id: &'static str,
    pub(crate) tag: Tag,
    pub(crate) summary: &'static str,
    pub(crate) query: Vec<Parameter>,
    pub(crate) request: Option<RequestDoc>,
    pub(crate) answers: Vec<AnswerDoc>,
    /// Codes of problems that not every operation has.
    pub(crate) problems: Vec<ErrorCode>,
}

/// Groups of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Produce,
    Consume,
    Look,
    Operate,
}

impl Tag {
    pub(crate) const ALL: [Tag; 4] = [Tag::Produce, Tag::Consume, Tag::Look, Tag::Operate];

    /// The name of the group, and its description.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Tag::Produce => ("produce", "Schedule messages, change them, and take them back."),
            Tag::Consume => ("consume", "Lease messages, and report their outcomes."),
            Tag::Look => ("look", "See what is pending, and the state of the server."),
            Tag::Operate => ("operate", "Set, pause and empty queues; make copies."),
        }
    }
}

/// A query parameter, which may always be left out.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) schema: SchemaOf,
    pub(crate) example: Value,
}

/// The body of a request, in one or more forms.
#[derive(Debug)]
pub(crate) struct RequestDoc {
    pub(crate) required: bool,
    pub(crate) media: Vec<MediaDoc>,
}

/// A form of a body: its content type, its schema and an example.
#[derive(Debug)]
pub(crate) struct MediaDoc {
    pub(crate) content_type: &'static str,
    pub(crate) schema: SchemaOf,
    pub(crate) example: Value,
}

/// An answer that is not a problem.
#[derive(Debug)]
pub(crate) struct AnswerDoc {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) media: Vec<MediaDoc>,
    /// Operations that take a value of this answer.
    pub(crate) links: &'static [Link],
}

/// A link from an answer to another operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) operation: &'static str,
    /// Parameters, and the places of their values in the answer.
    pub(crate) parameters: &'static [(&'static str, &'static str)],
}

/// The content type of one message on each line.
pub(crate) const LINES: &str = "application/x-ndjson";
const JSON: &str = "application/json";

impl OperationDoc {
    pub(crate) fn new(tag: Tag, id: &'static str, summary: &'static str) -> Self {
        OperationDoc {
            id,
            tag,
            summary,
            query: Vec::new(),
            request: None,
            answers: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Adds a query parameter.
    pub(crate) fn query(
        mut self,
        name: &'static str,
        description: &'static str,
        schema: SchemaOf,
        example: Value,
    ) -> Self {
        self.query.push(Parameter { name, description, schema, example });
        self
    }

    /// Sets the body in JSON.
    pub(crate) fn takes<T: JsonSchema + Deserialize<'static>>(self, example: &'static str) -> Self {
        self.request::<T>(true, example)
    }

    /// Sets the body in JSON, which may be left out.
    pub(crate) fn may_take<T: JsonSchema + Deserialize<'static>>(self, example: &'static str) -> Self {
        self.request::<T>(false, example)
    }

    fn request<T: JsonSchema + Deserialize<'static>>(
        mut self,
        required: bool,
        example: &'static str,
    ) -> Self {
        debug_assert!(strict::parse::<T>(example.as_bytes()).is_ok(), "{}: {example}", self.id);
        let example = serde_json::from_str(example).unwrap_or_default();
        let media = MediaDoc { content_type: JSON, schema: schema_of::<T>, example };
        self.request = Some(RequestDoc { required, media: vec![media] });
        self
    }

    /// Also accepts a body with an object on each line.
    pub(crate) fn takes_lines<T: JsonSchema>(mut self, example: &'static str) -> Self {
        let media = MediaDoc { content_type: LINES, schema: schema_of::<T>, example: example.into() };
        self.request.get_or_insert(RequestDoc { required: true, media: Vec::new() }).media.push(media);
        self
    }

    /// Sets an answer in JSON.
    pub(crate) fn gives<T: JsonSchema + Serialize>(
        self,
        status: u16,
        description: &'static str,
        example: &T,
    ) -> Self {
        let example = serde_json::to_value(example).unwrap_or_default();
        self.media(status, description, MediaDoc { content_type: JSON, schema: schema_of::<T>, example })
    }

    /// Sets an answer with an object on each line.
    pub(crate) fn gives_lines<T: JsonSchema + Serialize>(
        self,
        status: u16,
        description: &'static str,
        example: &[T],
    ) -> Self {
        let line = |one: &T| serde_json::to_string(one).unwrap_or_default() + "\n";
        let example = example.iter().map(line).collect::<String>().into();
        self.media(status, description, MediaDoc { content_type: LINES, schema: schema_of::<T>, example })
    }

    /// Sets an answer that is not JSON with a schema.
    pub(crate) fn gives_other(
        self,
        status: u16,
        description: &'static str,
        content_type: &'static str,
        schema: SchemaOf,
        example: Value,
    ) -> Self {
        self.media(status, description, MediaDoc { content_type, schema, example })
    }

    fn media(mut self, status: u16, description: &'static str, media: MediaDoc) -> Self {
        match self.answers.iter_mut().find(|answer| answer.status == status) {
            Some(answer) => answer.media.push(media),
            None => self.answers.push(AnswerDoc { status, description, media: vec![media], links: &[] }),
        }
        self
    }

    /// Links the last answer to other operations.
    pub(crate) fn leads_to(mut self, links: &'static [Link]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.links = links;
        }
        self
    }

    /// Adds the reasons for which the operation may be refused, besides those of all operations.
    pub(crate) fn refuses(mut self, codes: &[ErrorCode]) -> Self {
        self.problems.extend_from_slice(codes);
        self
    }
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
