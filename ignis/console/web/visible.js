// Text that others have chosen, made to look as it is: what would change the direction of what is around it, or cannot be seen at
// all, is shown as its number. Only for showing: what is edited and sent stays exact.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

const numbered = (char) => {
  const number = char.codePointAt(0).toString(16);
  return number.length > 4 ? `\\u{${number}}` : `\\u${number.padStart(4, "0")}`;
};

export const visible = (text) => text.replace(HIDDEN, numbered);
