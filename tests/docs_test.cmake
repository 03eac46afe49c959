# What comments and docs point to exists: sections, headings of docs/design.md, and files.
#   cmake -DROOT=<source folder> -P docs_test.cmake
cmake_minimum_required(VERSION 3.25)

function(complain file text)
  message("${file}: ${text}")
  set_property(GLOBAL APPEND PROPERTY COMPLAINTS ${file})
endfunction()

# ---- sections and headings -----------------------------------------------------------------------

file(STRINGS ${ROOT}/docs/design.md headings REGEX "^##+ ")
list(TRANSFORM headings REPLACE "^#+ " "")

# A section sign means the paper's, says so on its line, and names one that the paper has (4.1 to 4.5).
function(check_sections file text)
  string(REGEX MATCHALL "[^\n]*§[^\n]*" lines "${text}")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "§.*" "" before "${line}")
    if(NOT before MATCHES "[Pp]aper" OR line MATCHES "§4\\.([06-9]|[0-9][0-9])")
      complain(${file} "a section that is not said to be the paper's: ${line}")
    endif()
  endforeach()
endfunction()

# "docs/design.md, X" is followed by a heading of that page, perhaps on the next line of a comment.
function(check_headings file text)
  string(REGEX REPLACE "\n *[/#*]* *" " " text "${text}")
  string(REGEX MATCHALL "docs/design\\.md, [A-Za-z, ]+" citations "${text}")
  foreach(citation IN LISTS citations)
    set(found FALSE)
    foreach(heading IN LISTS headings)
      if(citation MATCHES "^docs/design\\.md, ${heading}($|[^a-z])")
        set(found TRUE)
      endif()
    endforeach()
    if(NOT found)
      complain(${file} "docs/design.md has no such heading: \"${citation}\"")
    endif()
  endforeach()
endfunction()

set(everywhere README.md CMakeLists.txt)
foreach(folder src include tests perf samples docs cmake)
  foreach(ending h cpp md cmake txt py sh proto in)
    list(APPEND patterns ${ROOT}/${folder}/*.${ending})
  endforeach()
endforeach()
file(GLOB_RECURSE files RELATIVE ${ROOT} ${patterns})
list(REMOVE_ITEM files tests/docs_test.cmake)
foreach(file IN LISTS everywhere files)
  file(READ ${ROOT}/${file} text)
  string(REGEX REPLACE "[][;]" " " text "${text}")  # they would confuse CMake's lists
  check_sections(${file} "${text}")
  check_headings(${file} "${text}")
endforeach()

# ---- files ---------------------------------------------------------------------------------------

# Whether `path`, as a page names it, is a file or folder: from the page, the top, src/ or include/.
function(find_path page path result)
  cmake_path(GET page PARENT_PATH folder)
  foreach(start ${folder} . src include include/smp)
    foreach(ending "" .h .cpp)
      if(EXISTS ${ROOT}/${start}/${path}${ending})
        set(${result} TRUE PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# Names of sources in backticks; other files if a folder is named too; both may be patterns with *.
function(check_named_files page text)
  string(REGEX MATCHALL "`[A-Za-z0-9_./-]+`" names "${text}")
  foreach(name IN LISTS names)
    string(REPLACE "`" "" name "${name}")
    if(name MATCHES "\\.(h|cpp|proto|cmake)$" OR name MATCHES "/.*\\.(md|json|py|sh|svg|txt)$"
       OR name MATCHES "^(src|include|tests|perf|samples|docs|cmake)/")
      find_path(${page} ${name} found)
      if(NOT found)
        complain(${page} "names ${name}, which does not exist")
      endif()
    endif()
  endforeach()
endfunction()

function(check_links page text)
  string(REGEX MATCHALL "LINK:[A-Za-z0-9_./-]+" links "${text}")
  cmake_path(GET page PARENT_PATH folder)
  foreach(link IN LISTS links)
    string(REPLACE "LINK:" "" path "${link}")
    if(NOT path MATCHES "^https?$" AND NOT EXISTS ${ROOT}/${folder}/${path})
      complain(${page} "links to ${path}, which does not exist")
    endif()
  endforeach()
endfunction()

# The first column of a table that begins with "| file |" names files of the page's folder, by stem if header and
# source belong together.
function(check_file_tables page text)
  string(REPLACE "\n" ";" lines "${text}")
  set(inside FALSE)
  foreach(line IN LISTS lines)
    if(line MATCHES "^\\| file \\|")
      set(inside TRUE)
    elseif(NOT line MATCHES "^\\|")
      set(inside FALSE)
    elseif(inside AND line MATCHES "^\\| (`[^|]*`) \\|")
      string(REGEX MATCHALL "`[A-Za-z0-9_./-]+`" names "${CMAKE_MATCH_1}")
      foreach(name IN LISTS names)
        string(REPLACE "`" "" name "${name}")
        find_path(${page} ${name} found)
        if(NOT found AND NOT name MATCHES "\\.(json|jsonl|csv|svg|html|smp)$")  # files of a run
          complain(${page} "its table names ${name}, which does not exist")
        endif()
      endforeach()
    endif()
  endforeach()
endfunction()

file(GLOB_RECURSE pages RELATIVE ${ROOT} ${ROOT}/docs/*.md ${ROOT}/src/README.md)
foreach(page IN LISTS pages)
  file(READ ${ROOT}/${page} text)
  string(REPLACE "[](" " " text "${text}")  # a lambda in an example
  string(REPLACE "](" " LINK:" text "${text}")
  string(REGEX REPLACE "[][;]" " " text "${text}")
  check_named_files(${page} "${text}")
  check_links(${page} "${text}")
  check_file_tables(${page} "${text}")
endforeach()

# ---- states of calls -----------------------------------------------------------------------------

# The moves of `enum` in src/server/calls/outgoing_call.h are the rows of the section `heading` of docs/outgoing_calls.md.
function(check_moves enum heading)
  set(page docs/outgoing_calls.md)
  file(READ ${ROOT}/src/server/calls/outgoing_call.h header)
  string(REGEX MATCHALL "{${enum}::k[A-Za-z]+, ${enum}::k[A-Za-z]+}" moves "${header}")
  list(TRANSFORM moves REPLACE "{${enum}::(k[A-Za-z]+), ${enum}::(k[A-Za-z]+)}" "\\1 \\2")
  file(READ ${ROOT}/${page} text)
  string(REGEX REPLACE "[][;]" " " text "${text}")
  string(REGEX REPLACE ".*\n## ${heading}\n" "" section "${text}")
  string(REGEX REPLACE "\n## .*" "" section "${section}")
  string(REGEX MATCHALL "\n. `k[A-Za-z]+` . `k[A-Za-z]+` . " rows "${section}")
  list(TRANSFORM rows REPLACE ".*`(k[A-Za-z]+)` . `(k[A-Za-z]+)`.*" "\\1 \\2")
  if(NOT moves OR NOT moves STREQUAL rows)
    complain(${page} "its moves of ${enum} are not those of the header: ${rows} instead of ${moves}")
  endif()
endfunction()

check_moves(ForwardState Forward)
check_moves(BackwardState Backward)

get_property(complaints GLOBAL PROPERTY COMPLAINTS)
list(LENGTH complaints count)
if(count)
  message(FATAL_ERROR "${count} references lead nowhere")
endif()
