# bash completion for lmdbio(1)
_lmdbio() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} i
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "run info check diff index ls cat export pack mount cache serve config ps stats --help --version" -- "$cur")
    return
  fi
  if [ "$command" = run ]; then
    for ((i = 2; i < COMP_CWORD; i++)); do # after the options, use the completion of the program
      case ${COMP_WORDS[i]} in
        --) ((i++)) ;;
        --json | --set | --library | --cache | --launcher) ((i++)) && continue ;;
        -*) continue ;;
      esac
      declare -F _command_offset >/dev/null && [ "$i" -le "$COMP_CWORD" ] && _command_offset "$i"
      return
    done
    case $prev in
      --set)
        mapfile -t COMPREPLY < <(compgen -W "$(lmdbio config 2>/dev/null | sed -n 's/^\(LMDBIO_[A-Z_]*=\).*/\1/p')" -- "$cur")
        compopt -o nospace
        return
        ;;
      --json | --library | --cache)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    esac
    case $cur in
      -*) mapfile -t COMPREPLY < <(compgen -W "--stats --processes --json --set --cache --nodes --launcher --library --help --" -- "$cur") ;;
      *) mapfile -t COMPREPLY < <(compgen -c -- "$cur") ;;
    esac
    return
  fi
  if [ "$command" = cache ]; then
    if [ "$COMP_CWORD" -eq 2 ]; then
      mapfile -t COMPREPLY < <(compgen -W "status warm drop verify --help" -- "$cur")
    elif [ "$prev" = --cache ]; then
      mapfile -t COMPREPLY < <(compgen -d -- "$cur")
    elif [[ $cur == -* ]]; then
      mapfile -t COMPREPLY < <(compgen -W "--cache --json --help $([ "${COMP_WORDS[2]}" = drop ] && echo --all)" -- "$cur")
    elif [[ ${COMP_WORDS[2]} == @(warm|drop) ]]; then
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
    return
  fi
  case $cur in
    -*)
      local words=--help
      case $command in
        info) words="--json --fast --pack --cache-rate --file-rate --help" ;;
        check) words="--json --meta --any-order --limit --quiet --help" ;;
        diff) words="--copy --db --json --limit --quiet --help" ;;
        index) words="--db --all --dry-run --json --help" ;;
        ls) words="--db --range -l --null --json --help" ;;
        cat) words="--db --value --help" ;;
        mount) words="--foreground --db --names --suffix --value --allow-other --help" ;;
        pack) words="--shuffle --label-keys --label-db --max-size --format --no-index --help" ;;
        export) words="--tar --db --prefix --range --suffix --value --help" ;;
        serve) words="--memory --leave-after --announce --stats --help --" ;;
        config) words="--json --help" ;;
        ps) words="--json --clean --help" ;;
        stats) words="--processes --json --help" ;;
      esac
      mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
      ;;
    *) [ "$command" = config ] || [ "$command" = ps ] || mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
  esac
}
complete -o filenames -F _lmdbio lmdbio
