//! Completion in bash, which splits words at the colons and equals signs of ports and options.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::env::{self, EnvCompleter};

/// bash, by a script that joins words that no blank separates.
pub struct Bash;

/// bash replaces only the text after the last separator, `$2`: the candidates go without what is before it.
const SCRIPT: &str = r#"
_clap_complete_sluice() {
    local IFS=$'\013' rest=${COMP_LINE:0:COMP_POINT} words=() last=-1 i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if ((last < 0)) || [[ $rest == [[:space:]]* ]]; then
            rest=${rest#"${rest%%[![:space:]]*}"}
            words[++last]=
        fi
        if ((i == COMP_CWORD)); then
            words[last]+=$rest
        else
            words[last]+=${COMP_WORDS[i]}
            rest=${rest#"${COMP_WORDS[i]}"}
        fi
    done
    local before=
    [[ ${words[last]} == *"$2" ]] && before=${words[last]%"$2"}
    COMPREPLY=($(_CLAP_IFS="$IFS" _CLAP_COMPLETE_INDEX=$last COMPLETE=bash COMPLETER -- "${words[@]}")) ||
        unset COMPREPLY
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    [[ ${COMPREPLY-} == *[=/:,] ]] && compopt -o nospace 2>/dev/null
}
complete -o bashdefault -o nosort -F _clap_complete_sluice sluice 2>/dev/null ||
    complete -o bashdefault -F _clap_complete_sluice sluice
"#;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(
        &self,
        _: &str,
        _: &str,
        _: &str,
        completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        out.write_all(SCRIPT.replace("COMPLETER", completer).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        env::Bash.write_complete(command, words, folder, out)
    }
}
