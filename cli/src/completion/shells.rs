//! Completion in bash and zsh, by scripts of our own. bash splits words at the colons and equals signs of
//! ports and options; neither shell may put a space after a word that goes on.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::env::{self, EnvCompleter};

/// A shell, and the script that connects it to the command.
pub struct Scripted {
    shell: &'static dyn EnvCompleter,
    script: &'static str,
}

/// bash; words are joined that no blank separates.
pub const BASH: Scripted = Scripted { shell: &env::Bash, script: BASH_SCRIPT };
/// zsh; its first completion loads the script and is one already.
pub const ZSH: Scripted = Scripted { shell: &env::Zsh, script: ZSH_SCRIPT };

/// bash replaces only the text after the last separator, `$2`: the candidates go without what is before it.
const BASH_SCRIPT: &str = r#"
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

/// A candidate is `VALUE` or `VALUE:HELP`, with `\:` for a colon in the value.
const ZSH_SCRIPT: &str = r#"#compdef sluice
_sluice() {
    local candidate value
    local -a open ended
    for candidate in "${(@f)$(_CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((CURRENT - 1)) COMPLETE=zsh \
        COMPLETER -- "${(@Q)words}" 2>/dev/null)}"; do
        value=${${candidate//\\:/=}%%:*}
        case $value in
            '') ;;
            *[=/,]) open+=("$candidate") ;;
            *) ended+=("$candidate") ;;
        esac
    done
    local failed=1
    (($#open)) && _describe -V values open -S '' && failed=0
    (($#ended)) && _describe -V values ended && failed=0
    return failed
}
if [[ ${funcstack[1]} == _sluice ]]; then
    _sluice "$@"
else
    compdef _sluice sluice
fi
"#;

impl EnvCompleter for Scripted {
    fn name(&self) -> &'static str {
        self.shell.name()
    }

    fn is(&self, name: &str) -> bool {
        self.shell.is(name)
    }

    fn write_registration(
        &self,
        _: &str,
        _: &str,
        _: &str,
        completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        out.write_all(self.script.replace("COMPLETER", completer).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        self.shell.write_complete(command, words, folder, out)
    }
}
