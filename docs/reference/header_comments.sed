# Plain comments as documentation: whole lines before what they are about, others behind it.
s@^( *)// ?@\1/// @
s@([;,{)]) +// ?(.*)$@\1  ///< \2@
