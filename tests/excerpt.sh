#!/usr/bin/env bash
# Prints the relevant part of a failed stage's log: tests/excerpt.sh LOG
#
# The relevant part contains tests that failed or never ended, panics with their messages, compiler errors, formatting
# differences, Python exceptions with the last frame, and the last line. Without any of these, it is the last 25 lines.
# It has at most 60 lines.
set -uo pipefail
log=${1:?usage: tests/excerpt.sh LOG}
max_lines=60

plain=$(sed $'s/\x1b\\[[0-9;]*[A-Za-z]//g' "$log")
found=$(awk '
    function keep(line) { kept[++lines] = line }
    function start(name, lines_of_it) { keep(name); message = lines_of_it }

    # libtest prints this line twice: before the output of the failed tests, where an empty line follows, and before the
    # list of their names.
    /^failures:$/ { naming = 1; message = 0; next }
    naming && /^    [^ ]/ { sub(/^ +/, ""); if (!named[$0]++) names[++tests] = "failed: " $0; next }
    { naming = 0 }
    /^test .* has been running for over/ { running[$2] = 1; next }
    /^test .* \.\.\. / { delete running[$2]; next }

    # A panic prints its location, and its message on the lines below.
    / panicked at / { start($0, 10); next }
    /^error(\[E[0-9]+\])?: / { start($0, 1); next }
    /^Diff in / { keep($0); next }
    # Only the last frame of a traceback is kept.
    /^Traceback / { frames = 1; frame = ""; message = 0; next }
    frames && /^  File / { frame = $0; next }
    frames && /^ / { if (frame != "" && frame !~ /\n/) frame = frame "\n" $0; next }
    frames { frames = 0; if (frame != "") keep(frame); start($0, 10); next }
    /^  FAIL / { start($0, 0); next }
    /^  (pass|SKIP) / || /^note: / || /^stack backtrace:/ || /^---- / || /^ *\|$/ || /^$/ { message = 0 }
    message > 0 { keep($0); message-- }

    END {
        for (i = 1; i <= tests; i++) print names[i]
        for (name in running) print "never ended: " name
        for (i = 1; i <= lines; i++) print kept[i]
    }' <<<"$plain")

end=$(grep . <<<"$plain" | tail -n 1)
if [ -z "$found" ]; then
    found=$(tail -n 25 <<<"$plain")
elif [ "$(tail -n 1 <<<"$found")" != "$end" ]; then
    found+=$'\n'$end
fi
more=$(($(wc -l <<<"$found") - max_lines))
if [ $more -gt 0 ]; then
    head -n $((max_lines - 2)) <<<"$found"
    echo "(and $((more + 1)) more lines, in the stage's own output)"
    tail -n 1 <<<"$found"
else
    printf '%s\n' "$found"
fi
