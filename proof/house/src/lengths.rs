//! The lengths of functions and files.

use syn::visit::Visit;

use crate::source::{Crate, for_tests};

/// Lines of each function that is not a test's, sorted.
pub(crate) fn functions(part: &Crate) -> Vec<usize> {
    let mut seen = Functions(Vec::new());
    for file in part.files.values() {
        seen.visit_file(&file.syntax);
    }
    seen.0.sort_unstable();
    seen.0
}

/// Lines of each file, sorted.
pub(crate) fn files(part: &Crate) -> Vec<usize> {
    let mut lines: Vec<usize> = part.files.values().map(|file| file.lines).collect();
    lines.sort_unstable();
    lines
}

/// These percentiles of sorted numbers.
pub(crate) fn say(sorted: &[usize], percentiles: &[usize]) -> String {
    let at = |percent: usize| sorted.get((sorted.len().max(1) - 1) * percent / 100).copied().unwrap_or(0);
    percentiles.iter().map(|percent| at(*percent).to_string()).collect::<Vec<_>>().join("/")
}

struct Functions(Vec<usize>);

impl Functions {
    fn note(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (from, to) = (signature.fn_token.span.start().line, block.brace_token.span.close().end().line);
        self.0.push(to + 1 - from);
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !for_tests(&item.attrs) {
            self.note(&item.sig, &item.block);
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }
}
