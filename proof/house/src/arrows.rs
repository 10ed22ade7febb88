//! Imports between crates, and between the files of one crate.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use crate::limits::FLOORS;
use crate::source::{Crate, House, for_tests};

type Module = Vec<String>;

/// Dependencies between crates that point to the same or a higher floor.
pub(crate) fn upward(house: &House) -> Vec<String> {
    let floor = |name: &str| FLOORS.iter().position(|each| *each == name);
    let arrows = house.crates.iter().flat_map(|part| part.needs.iter().map(move |need| (&part.name, need)));
    arrows.filter(|(from, to)| floor(to) >= floor(from)).map(|(from, to)| format!("{from} → {to}")).collect()
}

/// The import loops between files of a crate: each is a set of files that all reach each other.
pub(crate) fn loops(part: &Crate) -> Vec<Vec<String>> {
    let arrows = arrows(part);
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        part.files.keys().map(|from| (from, reachable(from, &arrows))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for from in part.files.keys() {
        let mut together: BTreeSet<&Module> =
            reach[from].iter().copied().filter(|to| reach[*to].contains(from)).collect();
        if together.is_empty() || seen.contains(from) {
            continue;
        }
        together.insert(from);
        seen.extend(together.iter().copied());
        found.push(together.into_iter().map(show).collect());
    }
    found
}

fn show(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

fn reachable<'a>(from: &Module, arrows: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut seen: BTreeSet<&Module> = BTreeSet::new();
    let mut next: Vec<&Module> = arrows.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if seen.insert(module) {
            next.extend(arrows.get(module).into_iter().flatten());
        }
    }
    seen
}

/// From each file to the files whose items it names. A name that a file only passes on leads to the file that defines
/// it.
fn arrows(part: &Crate) -> BTreeMap<Module, BTreeSet<Module>> {
    let scopes: BTreeMap<&Module, Scope> =
        part.files.iter().map(|(module, file)| (module, Scope::of(file))).collect();
    let mut arrows = BTreeMap::new();
    for module in part.files.keys() {
        let targets = scopes[module].paths.iter().filter_map(|path| {
            let path = absolute(module, path, &scopes)?;
            resolve(&path, &scopes, 0)
        });
        arrows.insert(module.clone(), targets.filter(|target| target != module).collect());
    }
    arrows
}

/// The path from the crate's root; `None` when it does not lead into this crate.
fn absolute(module: &Module, path: &[String], scopes: &BTreeMap<&Module, Scope>) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module.as_slice(), rest].concat()),
        "super" => {
            let above = module.split_last().map_or(&[][..], |(_, above)| above).to_vec();
            if rest.first().is_some_and(|next| next == "super") {
                return absolute(&above, rest, scopes);
            }
            Some([above.as_slice(), rest].concat())
        }
        _ => {
            let below = [module.as_slice(), std::slice::from_ref(first)].concat();
            scopes.contains_key(&below).then(|| [module.as_slice(), path].concat())
        }
    }
}

/// The file that defines the target of a path from the root.
fn resolve(path: &[String], scopes: &BTreeMap<&Module, Scope>, depth: usize) -> Option<Module> {
    let length = (0..=path.len()).rev().find(|n| scopes.contains_key(&path[..*n].to_vec()))?;
    let module = path[..length].to_vec();
    let scope = &scopes[&module];
    let Some(name) = path.get(length) else { return Some(module) };
    if depth < 8 && !scope.items.contains(name) {
        for (alias, target) in &scope.passed_on {
            let target = absolute(&module, target, scopes);
            let Some(target) = target else { continue };
            if alias == name {
                return resolve(&target, scopes, depth + 1);
            }
            if alias == "*" {
                let inside = [target.as_slice(), std::slice::from_ref(name)].concat();
                let found = resolve(&inside, scopes, depth + 1)?;
                if scopes[&found].items.contains(name) {
                    return Some(found);
                }
            }
        }
    }
    Some(module)
}

/// The definitions, re-exports and names of a file.
#[derive(Default)]
struct Scope {
    items: BTreeSet<String>,
    /// `pub use`: the name, and the path of its target; `*` for all.
    passed_on: Vec<(String, Vec<String>)>,
    paths: BTreeSet<Vec<String>>,
}

impl Scope {
    fn of(file: &crate::source::File) -> Self {
        let mut scope = Scope::default();
        scope.visit_file(&file.syntax);
        scope
    }

    fn import(&mut self, tree: &syn::UseTree, before: &mut Vec<String>, passes_on: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, passes_on);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, passes_on);
                }
            }
            syn::UseTree::Name(name) => self.imported(&name.ident, &name.ident, before, passes_on),
            syn::UseTree::Rename(rename) => self.imported(&rename.ident, &rename.rename, before, passes_on),
            syn::UseTree::Glob(_) if passes_on => self.passed_on.push(("*".to_owned(), before.clone())),
            syn::UseTree::Glob(_) => {
                self.paths.insert(before.clone());
            }
        }
    }

    /// Notes the paths of several words in tokens.
    fn paths_of(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(word) if colons == 2 && !path.is_empty() => path.push(word.to_string()),
                TokenTree::Ident(word) => {
                    self.note_path(std::mem::replace(&mut path, vec![word.to_string()]));
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.note_path(std::mem::take(&mut path));
                    self.paths_of(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.note_path(std::mem::take(&mut path)),
            }
            colons = 0;
        }
        self.note_path(path);
    }

    fn note_path(&mut self, words: Vec<String>) {
        if words.len() > 1 {
            self.paths.insert(words);
        }
    }

    fn imported(&mut self, name: &syn::Ident, alias: &syn::Ident, before: &[String], passes_on: bool) {
        let mut path = before.to_vec();
        if name != "self" {
            path.push(name.to_string());
        }
        if passes_on {
            self.passed_on.push((alias.to_string(), path));
        } else {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Scope {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (name, attributes) = match item {
            syn::Item::Struct(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Enum(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Trait(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Type(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Const(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Static(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            syn::Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
            syn::Item::Mod(item) => (None, &item.attrs),
            syn::Item::Use(item) => (None, &item.attrs),
            syn::Item::Impl(item) => (None, &item.attrs),
            _ => return syn::visit::visit_item(self, item),
        };
        if for_tests(attributes) {
            return;
        }
        if let Some(name) = name {
            self.items.insert(name.to_string());
        }
        if let syn::Item::Use(import) = item {
            let passes_on = !matches!(import.vis, syn::Visibility::Inherited);
            self.import(&import.tree, &mut Vec::new(), passes_on);
            return;
        }
        syn::visit::visit_item(self, item);
    }

    // The arguments of a macro are tokens, and so is the body of one that is defined here.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.paths_of(call.tokens.clone());
        syn::visit::visit_macro(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.note_path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::File;

    fn part(files: &[(&[&str], &str)]) -> Crate {
        let files = files.iter().map(|(module, text)| {
            let syntax = syn::parse_file(text).expect("source");
            let module = module.iter().map(|word| (*word).to_owned()).collect();
            (module, File { lines: text.lines().count(), syntax })
        });
        Crate { name: "part".into(), needs: Vec::new(), files: files.collect() }
    }

    /// Story: a file named a function of `lib.rs` inside of `format!`, and the loop of both was not seen.
    #[test]
    fn paths_in_macros_are_arrows() {
        let lib: (&[&str], &str) = (&[], "mod a; use crate::a::f; pub fn jobs(n: u64) -> u64 { n }");
        for call in [
            "fn f(n: u64) { println!(\"{} {n}\", crate::jobs(n)); }",
            "fn f(n: u64) { println!(\"{}\", vec![super::jobs(n)].len()); }",
            "macro_rules! f { ($n:expr) => { $crate::jobs($n) } } pub(crate) use f;",
        ] {
            assert_eq!(loops(&part(&[lib, (&["a"], call)])), [["lib", "a"]], "{call}");
        }
        assert!(loops(&part(&[lib, (&["a"], "pub fn f() { print!(\"crate::jobs\"); }")])).is_empty());
    }
}
