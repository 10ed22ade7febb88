//! Uses of hash tables in the pure crates that depend on the order of their entries.
//!
//! Clippy's `iter_over_hash_type` knows the tables of the standard library alone, and not hashbrown's or our own. So
//! this rule lists the methods that do not depend on the order, and refuses every other use of a table: an iteration,
//! and a table that is passed on whole, returned, renamed by an alias or visible to other files.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use crate::source::{House, for_tests};

/// The crates whose results depend on their inputs alone.
const PURE: [&str; 2] = ["wheel", "core"];

/// The types of hash tables.
const TABLES: [&str; 4] = ["HashMap", "HashSet", "HashTable", "SplitTable"];

/// The methods whose results do not depend on the order of entries.
const ORDERLESS: [&str; 15] = [
    "capacity",
    "clear",
    "contains",
    "contains_key",
    "entry",
    "find",
    "find_entry",
    "find_mut",
    "get",
    "get_mut",
    "insert",
    "insert_unique",
    "is_empty",
    "len",
    "remove",
];

/// The functions that make a table.
const CONSTRUCTORS: [&str; 5] =
    ["default", "new", "with_capacity", "with_capacity_and_hasher", "with_hasher"];

/// The file that implements a table by others. The rule looks at the users of that table instead.
const TABLE: &str = "core/growing";

/// Uses that are permitted: file, table, method.
const PERMITTED: [(&str, &str, &str); 1] = [
    // The messages with a key. Callers take the one that holds the key, or the newest of all.
    ("core/engine/rows", "by_key", "iter_hash"),
];

/// The uses of hash tables in the pure crates that may depend on the order of entries.
pub(crate) fn ordered(house: &House) -> Vec<String> {
    let mut found = Vec::new();
    for part in house.crates.iter().filter(|part| PURE.contains(&part.name.as_str())) {
        for (module, file) in &part.files {
            let place = format!("{}/{}", part.name, module.join("/"));
            if place == TABLE {
                continue;
            }
            let is_permitted =
                |it: &TableUse| PERMITTED.contains(&(place.as_str(), it.table.as_str(), it.method.as_str()));
            let uses = uses(&file.syntax).into_iter().filter(|it| !is_permitted(it));
            found.extend(uses.map(|it| format!("{place}:{}: {} {}", it.line, it.table, it.method)));
        }
    }
    found
}

/// A use of a hash table: the line, the table's name, and the method or another description.
#[derive(Debug, PartialEq)]
struct TableUse {
    line: usize,
    table: String,
    method: String,
}

impl TableUse {
    fn new(name: &syn::Ident, method: &str) -> Self {
        TableUse { line: name.span().start().line, table: name.to_string(), method: method.to_owned() }
    }
}

/// The uses in one file that may depend on the order of entries.
fn uses(file: &syn::File) -> Vec<TableUse> {
    let mut tables = Tables::default();
    tables.visit_file(file);
    let mut uses = Uses { tables: tables.names, found: tables.open };
    uses.visit_file(file);
    uses.found.sort_by_key(|it| it.line);
    uses.found
}

/// Finds the fields, arguments and variables that are hash tables.
#[derive(Default)]
struct Tables {
    names: BTreeSet<String>,
    /// Tables that code outside the file, or under another name, can use.
    open: Vec<TableUse>,
}

impl<'ast> Visit<'ast> for Tables {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for field in item.fields.iter().filter(|field| is_table(&field.ty)) {
            match (&field.ident, &field.vis) {
                (Some(name), syn::Visibility::Inherited) => {
                    self.names.insert(name.to_string());
                }
                (name, _) => {
                    let name = name.as_ref().unwrap_or(&item.ident);
                    self.open.push(TableUse::new(name, "is visible or has no name"));
                }
            }
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if variant.fields.iter().any(|field| is_table(&field.ty)) {
            self.open.push(TableUse::new(&variant.ident, "is a variant with a table"));
        }
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if is_table(&item.ty) {
            self.open.push(TableUse::new(&item.ident, "is an alias"));
        }
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let syn::ReturnType::Type(_, ty) = &signature.output
            && is_table(ty)
        {
            self.open.push(TableUse::new(&signature.ident, "returns a table"));
        }
        syn::visit::visit_signature(self, signature);
    }

    // Arguments, and variables with a type.
    fn visit_pat_type(&mut self, typed: &'ast syn::PatType) {
        if let syn::Pat::Ident(name) = &*typed.pat
            && is_table(&typed.ty)
        {
            self.names.insert(name.ident.to_string());
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            let mut mention = Mention(false);
            mention.visit_expr(&init.expr);
            if mention.0 {
                self.names.insert(name.ident.to_string());
            }
        }
        syn::visit::visit_local(self, local);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }
}

/// Whether a type is a hash table or has one inside.
fn is_table(ty: &syn::Type) -> bool {
    let mut mention = Mention(false);
    mention.visit_type(ty);
    mention.0
}

/// Whether a type of hash tables was mentioned.
struct Mention(bool);

impl<'ast> Visit<'ast> for Mention {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0 |= path.segments.iter().any(|segment| TABLES.iter().any(|table| segment.ident == table));
        syn::visit::visit_path(self, path);
    }
}

/// Finds the uses of the tables with these names.
struct Uses {
    tables: BTreeSet<String>,
    found: Vec<TableUse>,
}

impl Uses {
    /// The name of the table that an expression is.
    fn table<'e>(&self, expr: &'e syn::Expr) -> Option<&'e syn::Ident> {
        let name = match expr {
            syn::Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => Some(name),
                syn::Member::Unnamed(_) => None,
            },
            syn::Expr::Path(path) => path.path.get_ident(),
            syn::Expr::Paren(inner) => self.table(&inner.expr),
            syn::Expr::Reference(inner) => self.table(&inner.expr),
            _ => None,
        };
        name.filter(|name| self.tables.contains(&name.to_string()))
    }

    fn check(&mut self, name: &syn::Ident, method: &str) {
        if !ORDERLESS.contains(&method) {
            self.found.push(TableUse::new(name, method));
        }
    }

    /// Looks through the text of a macro call, which has no syntax.
    fn look_through(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.look_through(group.stream()),
                TokenTree::Ident(name) if self.tables.contains(&name.to_string()) => {
                    let method = match (tokens.get(at + 1), tokens.get(at + 2)) {
                        (Some(TokenTree::Punct(dot)), Some(TokenTree::Ident(method)))
                            if dot.as_char() == '.' =>
                        {
                            method.to_string()
                        }
                        _ => "is used in a macro".to_owned(),
                    };
                    self.check(name, &method);
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        match self.table(&call.receiver) {
            Some(name) => self.check(name, &call.method.to_string()),
            None => self.visit_expr(&call.receiver),
        }
        for argument in &call.args {
            self.visit_expr(argument);
        }
    }

    // A table that is not the receiver of a call: a `for` loop, an argument, a value.
    fn visit_expr(&mut self, expr: &'ast syn::Expr) {
        match self.table(expr) {
            Some(name) => self.check(name, "is used whole"),
            None => syn::visit::visit_expr(self, expr),
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let mut last = path.path.segments.iter().rev();
        if let (Some(function), Some(table)) = (last.next(), last.next()) {
            let is_table = TABLES.iter().any(|name| table.ident == name);
            if is_table && !CONSTRUCTORS.iter().any(|name| function.ident == name) {
                self.check(&table.ident, &function.ident.to_string());
            }
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.look_through(call.tokens.clone());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String, String)> {
        let uses = uses(&syn::parse_file(text).expect("Rust"));
        uses.into_iter().map(|it| (it.line, it.table, it.method)).collect()
    }

    #[test]
    fn order_dependent_uses_are_found() {
        let text = "struct S { rows: HashMap<u8, u8>, list: Vec<u8>, pub(super) open: HashSet<u8> }\n\
                    struct T(HashTable<u8>);\n\
                    type Alias = HashTable<u8>;\n\
                    impl S {\n\
                    fn a(&self) -> usize { self.rows.iter().count() }\n\
                    fn b(&self) { for row in &self.rows {} }\n\
                    fn c(&self) { let S { rows, .. } = self; all(rows); }\n\
                    fn d(&self) { assert!(self.rows.values().all(|n| *n > 0)); }\n\
                    fn e(&self, other: &SplitTable<u8>) { other.iter(); }\n\
                    fn f(&self) -> &HashMap<u8, u8> { panic!() }\n\
                    fn g(&self) { let made = HashMap::new(); made.into_iter(); }\n\
                    fn h(parts: &[u8]) { parts.iter().flat_map(HashTable::iter); }\n\
                    }";
        let lines: Vec<usize> = found(text).into_iter().map(|(line, ..)| line).collect();
        assert_eq!(lines, [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12], "{:?}", found(text));
    }

    #[test]
    fn order_free_uses_are_permitted() {
        let text = "struct S { rows: HashMap<u8, u8>, list: Vec<u8> }\n\
                    impl S {\n\
                    fn a(&mut self) { self.rows.insert(1, 2); self.rows.get(&1); (self.rows).clear(); }\n\
                    fn b(&self) { for n in &self.list {} assert!(self.rows.contains_key(&1)); }\n\
                    fn c() -> S { S { rows: HashMap::with_hasher(seed()), list: Vec::new() } }\n\
                    }\n\
                    #[cfg(test)]\n\
                    mod tests { fn d(s: &S) { s.rows.iter(); } }";
        assert!(found(text).is_empty(), "{:?}", found(text));
    }
}
