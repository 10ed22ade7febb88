//! The macro of the crate `duewheel`, which exports it with its feature `derive`.

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn3::meta::ParseNestedMeta;
use syn3::punctuated::Punctuated;
use syn3::{Data, DeriveInput, Error, Expr, Fields, Ident, LitStr, Token, parenthesized, parse_macro_input};

/// The methods of `Draft` that have an attribute of the same name; those of several arguments take them in parentheses.
const OPTIONS: [&str; 9] = [
    "backoff",
    "dedupe_window",
    "delay",
    "expires_in",
    "if_exists",
    "lease",
    "max_attempts",
    "priority",
    "spread",
];

/// Implements `duewheel::Job`, by the attribute `#[job(…)]`:
///
/// | | |
/// |---|---|
/// | `queue = "close-order"` | the name of the queue, constant; required |
/// | `key = "order-{number}"` | the key of the message, a format string that names fields |
/// | `delay = 48 * HOUR` | the delay of a draft that sets none |
/// | `max_attempts = 5`, `lease = 2 * MINUTE`, `backoff(SECOND, HOUR)`, `spread = 10 * MINUTE`, `expires_in = DAY`, `priority = 10`, `if_exists = IfExists::Keep`, `dedupe_window = HOUR` | as the method of `Draft` with this name |
///
/// Values are expressions of Rust, that of `key` a literal. With a `dedupe_window` each enqueue needs a `dedupe_id`.
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    implement(&input).unwrap_or_else(|error| error.into_compile_error().into())
}

/// The values of `#[job(…)]`.
#[derive(Default)]
struct JobAttributes {
    queue: Option<Expr>,
    key: Option<LitStr>,
    options: Vec<(Ident, Vec<Expr>)>,
}

impl JobAttributes {
    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> Result<(), Error> {
        let Some(name) = meta.path.get_ident() else { return Err(unknown(meta)) };
        let is_there = match name.to_string().as_str() {
            "queue" => self.queue.is_some(),
            "key" => self.key.is_some(),
            _ => self.options.iter().any(|(other, _)| other == name),
        };
        if is_there {
            return Err(meta.error(format!("`{name}` is given twice")));
        }
        match name.to_string().as_str() {
            "queue" => self.queue = Some(meta.value()?.parse()?),
            "key" => self.key = Some(meta.value()?.parse()?),
            option if OPTIONS.contains(&option) => {
                let values = if meta.input.peek(Token![=]) {
                    vec![meta.value()?.parse()?]
                } else {
                    let values;
                    parenthesized!(values in meta.input);
                    Punctuated::<Expr, Token![,]>::parse_terminated(&values)?.into_iter().collect()
                };
                self.options.push((name.clone(), values));
            }
            _ => return Err(unknown(meta)),
        }
        Ok(())
    }
}

fn unknown(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error(format!("not an attribute of a job: queue, key, {}", OPTIONS.join(", ")))
}

fn implement(input: &DeriveInput) -> Result<TokenStream, Error> {
    let mut job = JobAttributes::default();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
        attribute.parse_nested_meta(|meta| job.read(&meta))?;
    }
    let queue = job.queue.ok_or_else(|| {
        Error::new(input.ident.span(), "a job needs the name of its queue: #[job(queue = \"…\")]")
    })?;
    if let (None, Some((name, _))) = (&job.key, job.options.iter().find(|(name, _)| name == "if_exists")) {
        return Err(Error::new(name.span(), "`if_exists` is about a taken key, and this job has no `key`"));
    }
    let key = match &job.key {
        None => None,
        Some(key) => {
            let fields = named_fields(input).ok_or_else(|| {
                Error::new(
                    key.span(),
                    "only a struct with named fields has a `key` here; implement `Job` instead",
                )
            })?;
            Some(quote! {
                fn key(&self) -> ::std::option::Option<::std::string::String> {
                    #[allow(unused_variables)]
                    let Self { #(#fields,)* } = self;
                    ::std::option::Option::Some(::std::format!(#key))
                }
            })
        }
    };
    let options = job.options.iter().map(|(name, values)| {
        quote_spanned! { name.span() => let draft = ::duewheel::Draft::#name(draft, #(#values),*); }
    });
    let (name, (generics, arguments, bounds)) = (&input.ident, input.generics.split_for_impl());
    let implemented = quote! {
        #[automatically_derived]
        impl #generics ::duewheel::Job for #name #arguments #bounds {
            const QUEUE: &'static str = #queue;
            #key
            fn options(&self, draft: ::duewheel::Draft) -> ::duewheel::Draft {
                #(#options)*
                draft
            }
        }
    };
    Ok(implemented.into())
}

fn named_fields(input: &DeriveInput) -> Option<Vec<&Ident>> {
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => fields.named.iter().map(|field| field.ident.as_ref()).collect(),
            Fields::Unnamed(_) | Fields::Unit => None,
        },
        Data::Enum(_) | Data::Union(_) => None,
    }
}
